"""Our kernels in the real model on a GPU: each alone and all together, eager, in decode and in piecewise graphs."""

import pytest
import torch

import engine_process
from gemma4_repro.toys.language import held_out_prompts
from gemma4_repro.toys.locate import toy_path

pytestmark = pytest.mark.gpu

OPS_OF = {
    "toy-26b": ("cross-layer-norm", "routing", "triple-rmsnorm"),
    "toy-e4b": (
        "cross-layer-norm",
        "gelu-tanh-mul",
        "ple-front-end",
        "post-attention-norms",
        "rmsnorm-add",
        "rmsnorm-residual-scalar",
    ),
}
ENGINE = {
    "attention_backend": "triton",
    "page_size": 16,
    "max_total_tokens": 4096,
    "swa_full_tokens_ratio": 0.5,
    "max_running_requests": 8,
    "mem_fraction_static": 0.5,
    "cuda_graph_bs": [1, 8],
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
        "piecewise_cuda_graph_tokens": [128, 512],
    },
}
NEW_TOKENS = 6
# Three past the window; four within it, where SGLang and transformers read the same keys.
LONG, SHORT = 3, 4
PROMPTS = held_out_prompts(LONG, 101, seed=7) + held_out_prompts(SHORT, 20, seed=8)


@pytest.fixture(scope="module", params=[(toy, mode) for toy in OPS_OF for mode in MODES], ids="-".join)
def ran(request, tmp_path_factory):
    """(toy, mode, set of ops to what came out)."""
    toy, mode = request.param
    every = OPS_OF[toy]
    sets = [(), *((op,) for op in every), every]
    # Piecewise graphs are captured at the start, with the ops that are in force then.
    sets = [every] if mode == "piecewise" else sets
    runs = {}
    for patches in [(), every] if mode == "piecewise" else [every]:
        done = engine_process.run_child(
            "layer_ops_child.py",
            tmp_path_factory.mktemp("layer-ops"),
            {"HF_HUB_OFFLINE": "1", "GEMMA4_TRIAGE_PATCHES": ",".join(patches) or "swa-state-swap"},
            400,
            {
                "engine": ENGINE | MODES[mode] | {"model_path": str(toy_path(toy))},
                "prompts": PROMPTS,
                "new_tokens": NEW_TOKENS,
                "sets": [patches] if mode == "piecewise" else sets,
                "as_started": mode == "piecewise",
            },
        )
        assert done.returncode == 0, done.log[-6000:]
        runs |= dict(zip([patches] if mode == "piecewise" else sets, done.outputs, strict=True))
    return toy, mode, runs


@pytest.fixture(scope="module")
def exact(ran):
    """[step, prompt, vocabulary]: transformers' fp32 logits of the short prompts, on the tokens that came out."""
    from transformers import AutoModelForImageTextToText

    toy, _, runs = ran
    model = AutoModelForImageTextToText.from_pretrained(toy_path(toy), dtype=torch.float32).eval()
    rows = []
    for prompt, tokens in zip(PROMPTS[LONG:], runs[()]["tokens"][LONG:], strict=True):
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([prompt + tokens[:-1]])).logits[0]
        rows.append(logits[len(prompt) - 1 :])
    return torch.stack(rows, dim=1)


def rms(tensor):
    return tensor.double().pow(2).mean().sqrt().item()


def test_tokens_and_logits_are_those_without_them(ran, exact):
    """bf16 rounds elsewhere, so logits differ: by no more than two roundings of fp32 do, and to fp32 no further."""
    toy, mode, runs = ran
    plain = torch.tensor(runs[()]["logits"])
    assert exact.std() > 1
    own_error = rms(plain[:, LONG:] - exact)
    found = {}
    for chosen, run in runs.items():
        logits = torch.tensor(run["logits"])
        found["+".join(chosen)] = (rms(logits[:, LONG:] - exact) / own_error, rms(logits - plain) / own_error)
        assert run["tokens"] == runs[()]["tokens"], chosen
    print(
        f"{toy}, {mode}: rms error of SGLang's bf16 logits {own_error:.4f}; ours over it, difference over it: {found}"
    )
    assert all(error <= 1.1 and off <= 2 for error, off in found.values()), found


def test_every_op_took_our_kernel(ran):
    _, _, runs = ran
    for chosen, found in runs.items():
        wanted = set(chosen)
        # The tail is one launch with the norm after it where that is on; only a trace does without.
        if {"cross-layer-norm", "rmsnorm-residual-scalar"} <= wanted:
            wanted -= {"rmsnorm-residual-scalar"}
        assert {op: set(paths) for op, paths in found["paths"].items()} == {op: {"fused"} for op in wanted}
