"""Our routing kernel in the place of the one that Gemma4MoE's routing function launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from gemma4_kernels.routing.spec import MAX_EXPERTS, MAX_TOP_K
from gemma4_runtime.current import switched_on
from gemma4_runtime.fusion import ops
from gemma4_runtime.fusion.eligible import rows_reason, server_reason
from gemma4_runtime.fusion.paths import PATHS

OP = "routing"
Routing = Callable[[Tensor, Tensor, int, bool], tuple[Tensor, Tensor]]


class FusedRouting:
    """SGLang's custom routing function, with ours where it can be. per_expert_scale: [E]."""

    def __init__(self, own: Routing, per_expert_scale: Tensor) -> None:
        self._own, self._scale = own, per_expert_scale

    def __call__(
        self, hidden_states: Tensor, gating_output: Tensor, topk: int, renormalize: bool
    ) -> tuple[Tensor, Tensor]:
        if not switched_on(OP):
            return self._own(hidden_states, gating_output, topk, renormalize)
        if reason := _reason(gating_output, topk, renormalize):
            PATHS.took(OP, reason)
            return self._own(hidden_states, gating_output, topk, renormalize)
        PATHS.ran(OP, gating_output)
        return ops.routing(gating_output, self._scale, topk)


def after_moe_init(result: Any, moe: Any, *args: Any, **kwargs: Any) -> None:
    """Run after `Gemma4MoE.__init__`, which makes its routing function."""
    config = moe.topk.topk_config
    config.custom_routing_function = FusedRouting(config.custom_routing_function, moe.per_expert_scale)


def _reason(logits: Tensor, top_k: int, renormalize: bool) -> str | None:
    if not renormalize:
        return "weights that are not renormalised"
    if logits.shape[-1] > MAX_EXPERTS or top_k > MAX_TOP_K:
        return f"{top_k} of {logits.shape[-1]} experts"
    return server_reason() or rows_reason(logits)
