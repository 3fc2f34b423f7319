"""Our kernels in the place of SGLang's grouped ones for the experts of a few rows, where a table has them faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gemma4_kernels.routed_experts.launch import routed_experts
from gemma4_kernels.routed_experts.spec import MAX_PAIRS, MAX_ROWS, Plan
from gemma4_kernels.routed_experts.tuned import tuned_plans
from gemma4_runtime.current import switched_on
from gemma4_runtime.fusion.eligible import rows_reason, server_reason
from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.release import UnquantizedFusedMoEMethod

OP = "routed-experts"


class RoutedExperts:
    """The forward of a layer's experts, with ours where it can be."""

    def __init__(self, experts: Any) -> None:
        self._experts: Any = experts
        self._own: Callable[..., Tensor] = experts.forward

    def __call__(self, hidden_states: Tensor, topk_output: Any, *args: Any, **kwargs: Any) -> Tensor:
        # Of no rows, and of more than the kernel has, as in a prefill, no path is recorded.
        if not torch.compiler.is_compiling() and 1 <= hidden_states.shape[0] <= MAX_ROWS and switched_on(OP):
            plan = _plan_or_reason(self._experts, hidden_states, topk_output)
            PATHS.took(OP, *([plan] if isinstance(plan, str) else []))
            if not isinstance(plan, str):
                weights = self._experts.w13_weight, self._experts.w2_weight
                return routed_experts(hidden_states, *weights, topk_output.topk_weights, topk_output.topk_ids, plan)
        return self._own(hidden_states, topk_output, *args, **kwargs)


def after_moe_init(result: Any, moe: Any, *args: Any, **kwargs: Any) -> None:
    """Run after `Gemma4MoE.__init__`, which makes its experts."""
    moe.experts.forward = RoutedExperts(moe.experts)


def _plan_or_reason(experts: Any, x: Tensor, chosen: Any) -> Plan | str:
    """Return the plan of 1 to MAX_ROWS rows, or why SGLang's own kernels have to take them."""
    if reason := server_reason() or rows_reason(x) or _layer_reason(experts):
        return reason
    ids, shares = getattr(chosen, "topk_ids", None), getattr(chosen, "topk_weights", None)
    if ids is None or shares is None or ids.dtype is not torch.int32 or shares.dtype is not torch.float32:
        return "experts that are not chosen as int32 ids with fp32 weights"
    if not (ids.is_contiguous() and shares.is_contiguous()) or ids.numel() > MAX_PAIRS:
        return f"{ids.numel()} choices of experts"
    gate_up, down = experts.w13_weight, experts.w2_weight
    for weight in (gate_up, down):
        if type(weight) not in (torch.nn.Parameter, Tensor) or weight.dtype is not x.dtype or weight.dim() != 3:
            return "weights of experts that are no plain tensors of the rows' dtype"
    count, hidden, width = down.shape
    if gate_up.shape != (count, 2 * width, hidden) or gate_up.stride(-1) != 1 or down.stride(-1) != 1:
        return "weights of experts that lie otherwise than gate, up and down"
    if not x.is_cuda or x.dtype is not torch.bfloat16:
        return f"no plan was measured on {x.device.type} with {str(x.dtype).removeprefix('torch.')}"
    plans = tuned_plans(torch.cuda.get_device_name(x.device), hidden, width, count, ids.shape[1])
    if plans is None:
        return f"no plan was measured for {count} experts of [{width}, {hidden}]"
    return plans[x.shape[0]] or "SGLang's own kernels are as fast"


def _layer_reason(experts: Any) -> str | None:
    """Say why a layer of experts computes something else than the sum of gated ones; None if it does not."""
    method, config = experts.quant_method, experts.moe_runner_config
    if type(method) is not UnquantizedFusedMoEMethod or not method.runner.runner_backend.is_triton():
        return "experts that are quantised, or not computed by SGLang's Triton kernels"
    if experts.moe_tp_size != 1 or experts.moe_ep_size != 1:
        return "experts that are spread over ranks"
    if config.activation != "gelu" or not config.is_gated or config.apply_router_weight_on_input or config.no_combine:
        return "experts that are not gated by gelu and added up with their weights"
    if config.routed_scaling_factor not in (None, 1.0) or config.gemm1_alpha is not None:
        return "experts with a factor of their own"
    if any(getattr(experts, name, None) is not None for name in ("w13_weight_bias", "w2_weight_bias")):
        return "experts with a bias"
    return None
