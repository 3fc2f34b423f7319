"""The same in torch."""

from __future__ import annotations

import torch


def small_m_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return x [M, K] times weight [N, K] transposed, [M, N] in x's dtype, accumulated in fp32."""
    return (x.float() @ weight.float().T).to(x.dtype)
