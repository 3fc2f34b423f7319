"""Our kernels in the place of SGLang's grouped ones for the experts of a few rows, where a table has them faster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gemma4_kernels.routed_experts.launch import routed_experts
from gemma4_kernels.routed_experts.spec import MAX_ROWS, Plan
from gemma4_kernels.routed_experts.tuned import tuned_plans
from gemma4_runtime.current import switched_on
from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.fusion.plain_experts import choice_reason, experts_reason

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
    if reason := experts_reason(experts, x) or choice_reason(chosen):
        return reason
    if not x.is_cuda or x.dtype is not torch.bfloat16:
        return f"no plan was measured on {x.device.type} with {str(x.dtype).removeprefix('torch.')}"
    count, hidden, width = experts.w2_weight.shape
    plans = tuned_plans(torch.cuda.get_device_name(x.device), hidden, width, count, chosen.topk_ids.shape[1])
    if plans is None:
        return f"no plan was measured for {count} experts of [{width}, {hidden}]"
    return plans[x.shape[0]] or "SGLang's own kernels are as fast"
