"""Our kernels in the real model on a GPU: each alone and all together, eager, in decode and in piecewise graphs."""

import pytest

import engine_process
from gemma4_repro.toys.locate import toy_path
from layer_op_parity import NEW_TOKENS, PROMPTS, assert_parity

# What runs on a GPU alone has run with this release alone.
pytestmark = [pytest.mark.gpu, pytest.mark.releases("0.5.13.post1")]

OPS_OF = {
    "toy-26b": ("capped-logits", "cross-layer-norm", "qk-norm-rope", "routing", "token-embeddings", "triple-rmsnorm"),
    "toy-e4b": (
        "capped-logits",
        "cross-layer-norm",
        "gelu-tanh-mul",
        "ple-front-end",
        "post-attention-norms",
        "q-only-projection",
        "qk-norm-rope",
        "rmsnorm-add",
        "rmsnorm-residual-scalar",
        "token-embeddings",
    ),
}
ENGINE = {
    "attention_backend": "triton",
    "page_size": 16,
    "max_total_tokens": 4096,
    "swa_full_tokens_ratio": 0.5,
    "max_running_requests": 40,
    "mem_fraction_static": 0.5,
    "cuda_graph_bs": [1, 40],
    "dtype": "bfloat16",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    "disable_piecewise_cuda_graph": True,
}
MODES = {
    "eager": {"disable_cuda_graph": True},
    "graphs": {},
    "piecewise": {
        "disable_piecewise_cuda_graph": False,
        "enforce_piecewise_cuda_graph": True,
        "piecewise_cuda_graph_tokens": [128, 1024],
    },
}


# Without it SGLang's piecewise graphs replay the per-layer inputs of their capture (test_defaults_on_cuda.py).
ALWAYS = ("piecewise-ple",)


@pytest.fixture(
    scope="module",
    params=[(toy, mode) for toy in OPS_OF for mode in MODES],
    ids="-".join,
)
def ran(request, tmp_path_factory):
    """(toy, mode, set of ops to what came out)."""
    toy, mode = request.param
    every = OPS_OF[toy]
    sets = [(), *((op,) for op in every), every]
    # Piecewise graphs are captured at the start, with the ops that are in force then.
    sets = [every] if mode == "piecewise" else sets
    runs = {}
    for patches in [(), every] if mode == "piecewise" else [every]:
        done = engine_process.run_fresh(
            tmp_path_factory.mktemp("layer-ops"),
            {"HF_HUB_OFFLINE": "1", "GEMMA4_TRIAGE_PATCHES": ",".join((*patches, *ALWAYS))},
            400,
            {
                "task": "layer_op_parity:run_sets",
                "engine": ENGINE | MODES[mode] | {"model_path": str(toy_path(toy))},
                "prompts": PROMPTS,
                "new_tokens": NEW_TOKENS,
                "sets": [patches] if mode == "piecewise" else sets,
                "as_started": mode == "piecewise",
                "forced": True,
                "tokens": runs[()]["tokens"] if runs else None,
            },
        )
        assert done.returncode == 0, done.log[-6000:]
        runs |= dict(zip([patches] if mode == "piecewise" else sets, done.outputs, strict=True))
    return toy, mode, runs


def test_tokens_and_logits_are_those_without_them(ran):
    toy, _, runs = ran
    assert_parity(toy, runs)


@pytest.mark.parametrize("op", ["capped-logits", "token-embeddings"])
def test_what_a_step_begins_and_ends_with_changes_no_bit(ran, op):
    _, mode, runs = ran
    if mode == "piecewise":
        pytest.skip("its ops are in force all at once")
    assert runs[(op,)]["logits"] == runs[()]["logits"]


def test_every_op_took_our_kernel(ran):
    _, mode, runs = ran
    for chosen, found in runs.items():
        wanted = set(chosen)
        # The tail is one launch with the norm after it where that is on; a traced prefill does without.
        if {"cross-layer-norm", "rmsnorm-residual-scalar"} <= wanted and mode != "piecewise":
            wanted -= {"rmsnorm-residual-scalar"}
        assert {op: set(paths) for op, paths in found["paths"].items()} == {op: {"fused"} for op in wanted}
