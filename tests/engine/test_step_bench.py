"""The parts of `bench step` over SGLang's own model runner on this CPU: weights, arms switched, answers compared."""

import pytest

from gemma4_repro.step_bench.plan import ALL, APART, ATTENTION, ENDS, LEFT_OUT, SEVERAL
from toy_arguments import ENGINE

# No layer op is ported: 0.5.23's layers go through layers/layer_boundary.
pytestmark = [pytest.mark.engine, pytest.mark.releases("0.5.13.post1")]

EXPERTS = {
    "enable_moe_block": True,
    "num_experts": 8,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
    "hidden_size_per_layer_input": 0,
    "num_kv_shared_layers": 0,
}
LAYERS, SHARED = 8, 2
OPS_OF_E4B = {
    "post-attention-norms": LAYERS,
    "rmsnorm-add": LAYERS,
    "gelu-tanh-mul": LAYERS,
    "rmsnorm-residual-scalar": LAYERS,
    "cross-layer-norm": LAYERS,
    "ple-front-end": 1,
    "qk-norm-rope": LAYERS,
    "q-only-projection": SHARED,
    # A CPU has no table of plans.
    "small-m-linear": 0,
    "streamed-products": 0,
    # Alone it is not taken.
    "layer-tail": 0,
    # Nor has it Triton's attention.
    "decode-attention": 0,
    "attention-front": 0,
    "token-embeddings": 1,
    "capped-logits": 1,
}
IN_THE_TAIL = dict.fromkeys(("post-attention-norms", "rmsnorm-add", "gelu-tanh-mul", "cross-layer-norm"), 0)
OPS_OF_26B = dict.fromkeys(("routing", "triple-rmsnorm", "cross-layer-norm", "qk-norm-rope"), LAYERS)
OPS_OF_26B |= dict.fromkeys(
    (
        "small-m-linear",
        "streamed-products",
        "routed-experts",
        "dense-beside-experts",
        "decode-attention",
        "attention-front",
    ),
    0,
)
# The logits of fp32 are not copied.
OPS_OF_26B |= {"token-embeddings": 1, "capped-logits": 0}


@pytest.mark.parametrize(
    ("model", "dtype", "text", "calls", "broken"),
    [
        ("e4b", "bfloat16", {}, OPS_OF_E4B, "rmsnorm-add"),
        # A near-tie of two experts is no wrong answer, and in bf16 there may be one.
        ("26b", "float32", EXPERTS, OPS_OF_26B, "triple-rmsnorm"),
    ],
    ids=["e4b", "26b"],
)
def test_arms_are_what_their_names_say_and_a_wrong_one_is_seen(
    tmp_path, engine_forks, model, dtype, text, calls, broken
):
    engine = ENGINE | {"load_format": "dummy", "dtype": dtype}
    asked = {"folder": str(tmp_path), "engine": engine, "text": text, "model": model, "broken": broken}
    run = engine_forks.run(tmp_path, {}, 240, {"task": "step_bench_parts:measure_parts"} | asked)
    assert run.returncode == 0, run.log
    found = run.outputs
    dull, drawn = found["logits_std"]
    assert dull < 1e-6 < 0.3 < drawn < 5
    # Before the plugin's optimisations are attached, and after, with none in force.
    assert found["shipped"]["bit_equal"]
    several = ["all-cublas", "all-unstreamed", "all-separate", "all-sglang-experts", "all-dense-alone"]
    several += ["all-sglang-attention", "all-apart", "all-front-apart", "all"]
    assert list(found["arms"]) == ["none", *several, *calls]
    assert found["arms"]["none"]["bit_equal"]
    assert all(answer["right"] for answer in found["arms"].values()), found["arms"]
    assert 0 < found["arms"]["none"]["tolerance"] < 0.1
    for arm, fused in found["fused"].items():
        # A layer's end and the norm after it take the place of its end alone.
        everything = calls | ({"rmsnorm-residual-scalar": 0} if arm in SEVERAL else {})
        if "layer-tail" in calls and arm in ("all-sglang-experts", "all-dense-alone", ATTENTION, APART, ENDS, ALL):
            everything |= IN_THE_TAIL | {"layer-tail": LAYERS}
        everything |= dict.fromkeys(LEFT_OUT.get(arm, ()), 0)
        wanted = everything if arm in SEVERAL else {op: count for op, count in calls.items() if op == arm}
        assert {op: count for op, count in fused.items() if count} == {op: c for op, c in wanted.items() if c}
    assert set(found["broken"]) == {broken, *({"rmsnorm-residual-scalar"} & set(calls))}
    assert not any(answer["right"] for answer in found["broken"].values()), found["broken"]
