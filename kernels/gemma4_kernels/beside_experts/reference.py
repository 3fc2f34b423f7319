"""The same in torch."""

from __future__ import annotations

import torch

from gemma4_kernels.beside_experts.spec import Weights
from gemma4_kernels.rounding import Rounding
from gemma4_kernels.routed_experts.reference import routed_experts
from gemma4_kernels.routing.reference import routing
from gemma4_kernels.small_m_linear.reference import small_m_geglu, small_m_linear


def dense_beside_experts(
    dense_x: torch.Tensor, router_x: torch.Tensor, experts_x: torch.Tensor, weights: Weights, top_k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(dense, experts), [M, H] each, of three inputs [M, H]."""
    logits = small_m_linear(router_x, weights.router)
    shares, ids = routing(logits, weights.per_expert_scale, top_k, Rounding.FP32)
    dense = small_m_linear(small_m_geglu(dense_x, weights.gate_up), weights.down)
    return dense, routed_experts(experts_x, weights.experts_gate_up, weights.experts_down, shares, ids)
