"""The same in torch."""

from __future__ import annotations

import torch
from torch.nn.functional import gelu

from gemma4_kernels.layer_tail.spec import TailWeights


def layer_tail(
    attended: torch.Tensor,
    residual: torch.Tensor,
    ple: torch.Tensor,
    weights: TailWeights,
    next_norm: torch.Tensor,
    next_projection: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """(hidden, normed, projected or None), in attended's dtype, as spec.py has it and with its roundings."""
    dtype = attended.dtype
    exact = torch.float64 if dtype is torch.float64 else torch.float32

    def rounded(value: torch.Tensor) -> torch.Tensor:
        return value.to(dtype).to(exact)

    def times(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x @ weight.to(exact).T

    def inverse_rms(value: torch.Tensor) -> torch.Tensor:
        return torch.rsqrt(value.pow(2).mean(-1, keepdim=True) + eps)

    def scaled(value: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return rounded(value * weight.to(exact))

    def added(value: torch.Tensor, weight: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        return scaled(value, weight) * inverse_rms(value) + total

    attention = rounded(times(attended.to(exact), weights.o))
    hidden = rounded(added(attention, weights.post_attention, residual.to(exact)))
    gate, up = (times(scaled(hidden, weights.pre_feed_forward), weights.gate_up) * inverse_rms(hidden)).chunk(2, -1)
    gated = rounded(gelu(rounded(gate), approximate="tanh") * rounded(up))
    mlp = rounded(times(gated, weights.down))
    hidden = rounded(added(mlp, weights.post_feed_forward, hidden))
    gated = rounded(gelu(rounded(times(hidden, weights.ple_gate)), approximate="tanh") * ple.to(exact))
    projection = rounded(times(gated, weights.ple_projection))
    hidden = rounded(added(projection, weights.post_ple, hidden) * weights.scalar.to(exact))
    inverse = inverse_rms(hidden)
    normed = hidden * inverse * next_norm.to(exact)
    projected = None if next_projection is None else times(scaled(hidden, next_norm), next_projection) * inverse
    return hidden.to(dtype), normed.to(dtype), None if projected is None else projected.to(dtype)
