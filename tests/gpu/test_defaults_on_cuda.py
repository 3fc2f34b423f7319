"""The patched runtime as it comes, in SGLang's engine on a GPU: SGLang's answers, and everything took part."""

import pytest
import torch

import engine_process
import vision_load
import yoco_rounds
from engine_records import FILE
from gemma4_repro.toys.locate import toy_path
from gemma4_repro.toys.vision import make_toy, picture
from yoco_rounds import CHUNK, ROUNDS, TOKENS, all_rounds

# What runs on a GPU alone has run with this release alone.
pytestmark = [pytest.mark.gpu, pytest.mark.releases("0.5.13.post1")]

ENGINE = {
    "attention_backend": "triton",
    "page_size": 16,
    "max_total_tokens": 4096,
    "swa_full_tokens_ratio": 0.5,
    "max_running_requests": 8,
    "mem_fraction_static": 0.3,
    "cuda_graph_bs": [1, 8],
    "dtype": "bfloat16",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
}
TEXT = {"model_path": str(toy_path("toy-e4b")), "chunked_prefill_size": CHUNK, "enable_return_hidden_states": True}
MTP = {
    "speculative_algorithm": "NEXTN",
    "speculative_draft_model_path": str(toy_path("toy-e4b-assistant")),
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 4,
}
# Of log probabilities in bf16: several times the error that SGLang's own logits have to fp32 (test_layer_ops.py).
ERROR, TIE = 0.25, 0.5
PICTURES = [(300, 200), (320, 320), (100, 400), (64, 64)]


PIECEWISE = {"piecewise_cuda_graph_tokens": [8, 64, 256, 1024]}
EAGER = "default,-piecewise-multimodal"


def run(folder, patches, spec):
    """Return what its one arm gave."""
    environment = {"HF_HUB_OFFLINE": "1", "GEMMA4_TRIAGE_PATCHES": patches, "GEMMA4_TRIAGE_YOCO_ROWS": "1"}
    done = engine_process.run_fresh(folder, environment | {FILE: str(folder / "records")}, 300, spec)
    assert done.returncode == 0, done.log[-6000:]
    return done.outputs[0]


def run_rounds(folder, patches, arm):
    return yoco_rounds.read(run(folder, patches, {"arms": [arm]}))


MODES = {"plain": {}, "mtp": MTP, "piecewise": PIECEWISE, "piecewise-mtp": PIECEWISE | MTP}


@pytest.fixture(scope="module", params=list(MODES))
def served(request, tmp_path_factory):
    """Return the mode, what SGLang served, and the patched runtime; in piecewise graphs the latter alone."""
    what = all_rounds(ENGINE | TEXT | MODES[request.param])
    patches = EAGER
    if "piecewise" in request.param:
        without_hidden_states(what)
        patches = "default"
    plain = run_rounds(tmp_path_factory.mktemp("text"), "none", what)
    return request.param, plain, run_rounds(tmp_path_factory.mktemp("text"), patches, what)


def without_hidden_states(what):
    """Drop the option: a server that may be asked for hidden states captures graphs for those requests alone."""
    del what["engine"]["enable_return_hidden_states"]
    for one in what["loads"]:
        one.pop("return_hidden_states", None)


def worst_error(plain, ours):
    """Return the largest difference of log probabilities in a round; tokens that differ were a near-tie."""
    worst = 0.0
    for one, other in zip(plain, ours, strict=True):
        wanted, found = torch.tensor(one["logprobs"]), torch.tensor(other["logprobs"])
        assert wanted.shape == found.shape == (TOKENS, 512)
        # The second step has read the first one's token.
        steps = TOKENS if one["tokens"][0] == other["tokens"][0] else 1
        error = (found - wanted)[:steps].pow(2).mean(-1).sqrt().max().item()
        worst = max(worst, error)
        top = wanted.topk(2).values
        unlike = torch.tensor([a != b for a, b in zip(one["tokens"], other["tokens"], strict=True)])[:steps]
        if error <= ERROR:
            assert ((top[:, 0] - top[:, 1])[:steps][unlike] < TIE).all()
    return worst


@pytest.mark.parametrize("name", ROUNDS)
def test_answers_are_sglangs(served, name):
    _, plain, ours = served
    number = list(ROUNDS).index(name)
    assert worst_error(plain["rounds"][number], ours["rounds"][number]) <= ERROR


def test_everything_took_part(served):
    mode, _, ours = served
    if "piecewise" in mode:
        assert ours["paths"]["piecewise-multimodal"]["fused"] >= 5
        assert ours["paths"]["yoco"]["in piecewise graphs"] >= 5
        assert ours["paths"]["yoco"]["skipped: a chunk that is not the last"] >= 4
    else:
        assert ours["paths"]["yoco"]["fused"] >= 5
        assert ours["paths"]["yoco"]["skipped: a chunk that is not the last"] >= 4
    assert set(ours["paths"]["qk-norm-rope"]) == {"fused"}
    assert set(ours["paths"]["swa-window-lists"]) == {"fused"}
    assert ours["pools"]["owner-only-kv"].startswith("in force: ")


def test_sglangs_own_piecewise_graphs_read_the_per_layer_inputs_of_their_capture(tmp_path):
    """The fault that piecewise-ple mends: enforced graphs of the release, and the same with the fix."""
    found = {}
    for patches, enforced in (("none", False), ("none", True), ("piecewise-ple", True)):
        what = all_rounds(ENGINE | TEXT | PIECEWISE | {"enforce_piecewise_cuda_graph": enforced})
        without_hidden_states(what)
        folder = tmp_path / f"{patches}-{enforced}"
        folder.mkdir()
        found[patches, enforced] = run_rounds(folder, patches, what)["rounds"]
    right = found["none", False]
    shipped = [worst_error(plain, other) for plain, other in zip(right, found["none", True], strict=True)]
    fixed = [worst_error(plain, other) for plain, other in zip(right, found["piecewise-ple", True], strict=True)]
    print(f"worst error of a round's log probabilities: enforced {shipped}, with piecewise-ple {fixed}")
    assert max(shipped) > 2 * ERROR
    assert max(fixed) <= ERROR


def test_pictures(tmp_path):
    toy = make_toy(tmp_path / "toy")
    paths = [str(tmp_path / f"{number}.png") for number in range(len(PICTURES))]
    for seed, (path, size) in enumerate(zip(paths, PICTURES, strict=True)):
        picture(*size, seed).save(path)
    batches = {
        "one": [{"text": "<|image|> bal bel <|image|> bil", "images": paths[:2]}],
        "two": [
            {"text": "bal <|image|>", "images": paths[2:3]},
            {"text": "bal bel <|image|> <|image|>", "images": paths[2:4]},
        ],
    }
    engine = ENGINE | {"model_path": str(toy), "mm_attention_backend": "triton_attn"} | PIECEWISE
    what = vision_load.spec_of(engine, batches.values(), new_tokens=1)
    found = {}
    for patches in ("none", EAGER, "default", f"{EAGER},vision-hf-exact"):
        folder = tmp_path / patches.replace(",", "-")
        folder.mkdir()
        found[patches] = vision_load.read(batches, run(folder, patches, what))
    for name in list(found)[1:]:
        for batch in batches:
            for one, other in zip(found["none"][batch]["answers"], found[name][batch]["answers"], strict=True):
                assert "tokens" in one, one
                assert "tokens" in other, other
                if "vision-hf-exact" not in name:
                    assert other["logprobs"] == pytest.approx(one["logprobs"], abs=ERROR)
        assert set(found[name]["paths"]["vision-batching"]) == {"batched"}
    assert found["default"]["paths"]["piecewise-multimodal"]["fused"] >= 2
