"""The same in torch."""

from __future__ import annotations

import torch

from gemma4_kernels.gelu_tanh_mul.reference import gelu_tanh_mul
from gemma4_kernels.rounding import Rounding


def small_m_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return x [M, K] times weight [N, K] transposed, [M, N] in x's dtype, accumulated in fp32."""
    return (x.float() @ weight.float().T).to(x.dtype)


def small_m_geglu(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return gelu_tanh of the product's first half, times its second, [M, N / 2] in x's dtype."""
    gate, partner = small_m_linear(x, weight).chunk(2, dim=1)
    return gelu_tanh_mul(gate, partner, Rounding.FP32)


def small_m_gelu_mul(x: torch.Tensor, weight: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    """Return gelu_tanh of the product, times factor [M, N], in x's dtype."""
    return gelu_tanh_mul(small_m_linear(x, weight), factor, Rounding.FP32)
