"""The same in torch."""

from __future__ import annotations

import torch

from gemma4_kernels.beside_experts.spec import Weights
from gemma4_kernels.rounding import Rounding
from gemma4_kernels.routed_experts.reference import routed_experts
from gemma4_kernels.routing.reference import routing
from gemma4_kernels.small_m_linear.reference import small_m_geglu, small_m_linear


def gate_beside_router(
    dense_x: torch.Tensor, router_x: torch.Tensor, gate_up: torch.Tensor, router: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(gated, logits) of two inputs [M, H]."""
    return small_m_geglu(dense_x, gate_up), small_m_linear(router_x, router)


def experts_beside_down(
    experts_x: torch.Tensor,
    gate_up: torch.Tensor,
    experts_down: torch.Tensor,
    shares: torch.Tensor,
    ids: torch.Tensor,
    gated: torch.Tensor,
    down: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(dense, experts), [M, H] each."""
    return small_m_linear(gated, down), routed_experts(experts_x, gate_up, experts_down, shares, ids)


def dense_beside_experts(
    dense_x: torch.Tensor, router_x: torch.Tensor, experts_x: torch.Tensor, weights: Weights, top_k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(dense, experts), [M, H] each, of three inputs [M, H]."""
    gated, logits = gate_beside_router(dense_x, router_x, weights.gate_up, weights.router)
    shares, ids = routing(logits, weights.per_expert_scale, top_k, Rounding.FP32)
    of_experts = experts_x, weights.experts_gate_up, weights.experts_down, shares, ids
    return experts_beside_down(*of_experts, gated, weights.down)
