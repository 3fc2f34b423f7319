"""The parts of `bench step` on the host engine, where a step runs eagerly: a task for `engine_child`.

The spec: folder (for the model), engine (arguments of ServerArgs), text (what differs from the toy's text_config),
model (whose arms), broken (an op whose kernel is to be wrong in the end; rmsnorm-residual-scalar then leaves out the
scalar). The result: logits_std before and after the weights are redrawn; shipped and arms: what `answers` says of
each; fused: arms to ops to calls; broken: the answers of these arms.
"""

from pathlib import Path
from typing import Any

CONTEXT = 40


def let_experts_run() -> None:
    """Replace what does not run on a CPU by what SGLang has for it.

    SGLang's CPU path of the experts refuses gelu, which its own native function computes; and the native norm of the
    router leaves out the scale that SGLang folds into it, which the CUDA norm applies.
    """
    from sglang.srt.layers.moe.fused_moe_native import moe_forward_native
    from sglang.srt.layers.moe.token_dispatcher import StandardCombineInput
    from sglang.srt.layers.quantization.unquant import UnquantizedFusedMoEMethod
    from sglang.srt.models.gemma4_causal import Gemma4Router

    def forward_native(self, layer, dispatch_output):
        rows, topk = dispatch_output.hidden_states, dispatch_output.topk_output
        return StandardCombineInput(hidden_states=moe_forward_native(layer, rows, topk, self.moe_runner_config))

    def route(self, x):
        if not self._scale_fused:
            self.fuse_scale()
        return self.proj(self.norm(x) * self.norm.weight)[0]

    UnquantizedFusedMoEMethod.forward_cpu = UnquantizedFusedMoEMethod.forward_native = forward_native
    Gemma4Router.forward = route


def measure_parts(spec: dict[str, Any]) -> dict[str, Any]:
    """Answer a step with every arm, and with one whose kernel is wrong."""
    import torch
    from sglang.srt.plugins import load_plugins

    load_plugins()
    let_experts_run()
    from gemma4_repro.bench.checkpoint import write_checkpoint
    from gemma4_repro.step_bench.answers import compare
    from gemma4_repro.step_bench.in_force import attach, fused_calls, only
    from gemma4_repro.step_bench.loaded_model import LoadedModel
    from gemma4_repro.step_bench.measure import answers
    from gemma4_repro.step_bench.model_sizes import SIZES
    from gemma4_repro.step_bench.plan import ARMS, OPS, SHIPPED, StepPlan, has
    from gemma4_repro.step_bench.weights import redraw
    from gemma4_runtime.fusion import ops

    model = spec["model"]
    checkpoint = write_checkpoint("toy-e4b", Path(spec["folder"]) / "model", spec["text"], {})
    loaded = LoadedModel(spec["engine"] | {"model_path": str(checkpoint)})
    dull = loaded.step(loaded.begin(2, CONTEXT), loaded.shipped, attached=False)
    redraw(loaded.model)
    requests = loaded.begin(2, CONTEXT)
    shipped = loaded.step(requests, loaded.shipped, attached=False)
    attach([op for op in OPS if has(op, SIZES[model])], loaded.model)
    plan = StepPlan((model,), (2,), None, tuple(ARMS), 5, 60.0)
    arms = [loaded.capture(name, plan.ops_of(name, model)) for name in plan.arms_of(model) if name != SHIPPED]
    found, fused = {}, {}
    for arm, answer in answers(loaded, arms, requests):
        found[arm.name] = answer
    for arm in arms:
        before = fused_calls()
        loaded.step(requests, arm)
        fused[arm.name] = {op: calls - before.get(op, 0) for op, calls in fused_calls().items()}
    name = spec["broken"].replace("-", "_")
    right, scaled = getattr(ops, name), ops.rmsnorm_residual_scalar
    setattr(ops, name, lambda first, *others, **named: right(first * first, *others, **named))
    ops.rmsnorm_residual_scalar = lambda x, w, rows, scalar, eps: scaled(x, w, rows, torch.ones_like(scalar), eps)
    broken = [arm for arm in arms if arm.name in ("none", spec["broken"], "rmsnorm-residual-scalar")]
    last = {arm.name: answer for arm, answer in answers(loaded, broken, requests) if arm.name != "none"}
    result = {
        "logits_std": [dull.std().item(), shipped.std().item()],
        "shipped": compare(shipped, loaded.step(requests, arms[0])),
        "arms": found,
        "fused": fused,
        "broken": last,
    }
    only((), loaded.model)
    return result
