"""Each of our kernels in the real model, one at a time and all together: same greedy tokens, same logits."""

import pytest
import torch

from gemma4_repro.toys.language import held_out_prompts
from gemma4_repro.toys.locate import toy_path
from layer_op_parity import NEW_TOKENS as BF16_TOKENS
from layer_op_parity import PROMPTS, assert_parity

# No layer op is ported: 0.5.23's layers go through layers/layer_boundary.
pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1")]

EXPERTS = {"routing", "triple-rmsnorm"}
DENSE = {"post-attention-norms", "rmsnorm-residual-scalar"}
PLE = {"rmsnorm-add", "gelu-tanh-mul", "ple-front-end"}
EITHER = {"cross-layer-norm", "qk-norm-rope", "token-embeddings"}
SHARED_KEYS = {"q-only-projection"}
OF_BF16 = {"capped-logits"}
TAIL = ("layer-tail", "small-m-linear", "streamed-products")
"""A CPU has no plan for the last two; the first wants all three in force."""
OPS = sorted(EXPERTS | DENSE | PLE | EITHER | SHARED_KEYS)
HAS = {"toy-26b": EXPERTS | EITHER, "toy-e4b": DENSE | PLE | EITHER | SHARED_KEYS}
NEW_TOKENS = 6
# fp32 and other orders of summation; logits are of the order of 10.
TOLERANCE = 1e-4
NOT_TAKEN = "hidden states on cpu"


@pytest.fixture(scope="module", params=sorted(HAS))
def ran(request, tmp_path_factory, engine_forks, engine_arguments):
    """(toy, set of ops to what came out): none, each op alone, all, and all on a server that must not take them."""
    sets = [[], *([op] for op in OPS), OPS, [*OPS, *TAIL]]
    done = engine_forks.run(
        tmp_path_factory.mktemp("layer-ops"),
        {"GEMMA4_TRIAGE_PATCHES": ",".join((*OPS, *TAIL))},
        240,
        {
            "task": "layer_op_parity:run_sets",
            "engine": engine_arguments | {"model_path": str(toy_path(request.param))},
            "prompts": held_out_prompts(3, 101, seed=7) + held_out_prompts(1, 1, seed=8),
            "new_tokens": NEW_TOKENS,
            "sets": [*sets, OPS],
            "refused": [len(sets)],
        },
    )
    assert done.returncode == 0, done.log[-4000:]
    results = dict(zip([tuple(one) for one in sets] + ["refused"], done.outputs, strict=True))
    return request.param, results


def difference(found, wanted):
    return (torch.tensor(found["logits"]) - torch.tensor(wanted["logits"])).abs().max().item()


@pytest.mark.parametrize("chosen", [(op,) for op in OPS] + [tuple(OPS)], ids="+".join)
def test_tokens_and_logits_are_those_without_it(ran, chosen):
    toy, results = ran
    plain, fused = results[()], results[chosen]
    assert fused["tokens"] == plain["tokens"]
    assert difference(fused, plain) <= TOLERANCE
    # What the model has not is never asked; what it has ran fused in every layer, and nothing refused.
    concerned = set(chosen) & HAS[toy]
    # A layer's tail is one launch with the norm after it where that is on.
    if "cross-layer-norm" in concerned:
        concerned -= {"rmsnorm-residual-scalar"}
    # On this CPU a kernel's torch reference ran; a product of fewer rows has no kernel of ours.
    wanted = {op: {"fused" if op == "q-only-projection" else "reference"} for op in concerned}
    assert {op: set(paths) for op, paths in fused["paths"].items()} == wanted


def test_a_layer_behind_its_attention_in_one_launch_changes_no_token(ran):
    toy, results = ran
    fused = results[*OPS, *TAIL]
    assert fused["tokens"] == results[()]["tokens"]
    assert difference(fused, results[()]) <= TOLERANCE
    # Prefills have more rows than the tail takes, so the ops that it takes the place of ran too.
    assert set(fused["paths"].get("layer-tail", {})) == ({"reference"} if toy == "toy-e4b" else set())


def test_logits_are_no_constants(ran):
    _, results = ran
    assert torch.tensor(results[()]["logits"]).std() > 1


def test_without_them_nothing_is_recorded(ran):
    assert ran[1][()]["paths"] == {}


def test_a_server_that_must_not_take_them_has_sglangs_own_bits_and_says_why(ran):
    toy, results = ran
    assert difference(results["refused"], results[()]) == 0
    assert set(results["refused"]["paths"]) == HAS[toy]
    assert {why for paths in results["refused"]["paths"].values() for why in paths} == {NOT_TAKEN}


@pytest.mark.parametrize("toy", sorted(HAS))
def test_a_decode_steps_attention_may_begin_with_what_is_ahead_of_it(toy, tmp_path, engine_forks, engine_arguments):
    """Layers with keys of their own and without, in both pools: later steps read what earlier ones have stored."""
    front = ("qk-norm-rope", "decode-attention", "attention-front")
    sets = [(), front]
    # What is refused without the others is the same with experts.
    if toy == "toy-e4b":
        sets += [("qk-norm-rope", "attention-front"), ("attention-front",)]
    done = engine_forks.run(
        tmp_path,
        {"GEMMA4_TRIAGE_PATCHES": ",".join(front)},
        240,
        {
            "task": "layer_op_parity:run_sets",
            "engine": engine_arguments | {"model_path": str(toy_path(toy)), "attention_backend": "triton"},
            "prompts": held_out_prompts(1, 37, seed=7) + held_out_prompts(1, 1, seed=8),
            "new_tokens": 3,
            "sets": sets,
        },
    )
    assert done.returncode == 0, done.log[-4000:]
    plain, fused, *fewer = done.outputs
    assert all(one["tokens"] == plain["tokens"] for one in (fused, *fewer))
    assert difference(fused, plain) <= TOLERANCE
    assert {op: set(paths) for op, paths in fused["paths"].items()} == {op: {"reference"} for op in front}
    refused = [set(one["paths"]["attention-front"]) for one in fewer]
    assert refused == [{"without decode-attention"}, {"without qk-norm-rope"}][: len(fewer)]
    assert len(done.outputs) == len(sets)


@pytest.mark.parametrize("toy", sorted(HAS))
def test_in_bf16_they_are_no_further_from_fp32_than_sglang(toy, tmp_path, engine_forks, engine_arguments):
    ops = sorted(HAS[toy] | OF_BF16)
    sets = [(), *((op,) for op in ops), tuple(ops)]
    done = engine_forks.run(
        tmp_path,
        {"GEMMA4_TRIAGE_PATCHES": ",".join(ops)},
        240,
        {
            "task": "layer_op_parity:run_sets",
            "engine": engine_arguments
            | {
                "model_path": str(toy_path(toy)),
                "dtype": "bfloat16",
                "max_running_requests": 40,
                "swa_full_tokens_ratio": 0.7,
            },
            "prompts": PROMPTS,
            "new_tokens": BF16_TOKENS,
            "sets": sets,
            "forced": True,
        },
    )
    assert done.returncode == 0, done.log[-4000:]
    runs = dict(zip(sets, done.outputs, strict=True))
    assert_parity(toy, runs)
    for op in ("token-embeddings", "capped-logits"):
        # A step begins and ends with these, which change no bit.
        assert runs[(op,)]["paths"] == {op: runs[(op,)]["paths"][op]}
        assert set(runs[(op,)]["paths"][op]) == {"reference"}
        assert difference(runs[(op,)], runs[()]) == 0
