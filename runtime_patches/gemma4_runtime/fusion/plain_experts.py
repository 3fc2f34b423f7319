"""Experts that are the sum of gated ones and nothing else: what our kernels for a few rows ask of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gemma4_kernels.routed_experts.spec import MAX_PAIRS
from gemma4_runtime.fusion.eligible import rows_reason, server_reason
from gemma4_runtime.release import UnquantizedFusedMoEMethod


def experts_reason(experts: Any, x: Tensor) -> str | None:
    """Say why SGLang's own kernels have to take a layer's experts of rows x [M, H]; None if they need not."""
    if reason := server_reason() or rows_reason(x) or _layer_reason(experts):
        return reason
    gate_up, down = experts.w13_weight, experts.w2_weight
    for weight in (gate_up, down):
        if type(weight) not in (torch.nn.Parameter, Tensor) or weight.dtype is not x.dtype or weight.dim() != 3:
            return "weights of experts that are no plain tensors of the rows' dtype"
    count, hidden, width = down.shape
    if gate_up.shape != (count, 2 * width, hidden) or gate_up.stride(-1) != 1 or down.stride(-1) != 1:
        return "weights of experts that lie otherwise than gate, up and down"
    return None


def choice_reason(chosen: Any) -> str | None:
    """Say why our kernels cannot read which experts the rows chose; None if they can."""
    ids, shares = getattr(chosen, "topk_ids", None), getattr(chosen, "topk_weights", None)
    if ids is None or shares is None or ids.dtype is not torch.int32 or shares.dtype is not torch.float32:
        return "experts that are not chosen as int32 ids with fp32 weights"
    if not (ids.is_contiguous() and shares.is_contiguous()) or ids.numel() > MAX_PAIRS:
        return f"{ids.numel()} choices of experts"
    return None


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
