"""The same in torch."""

from __future__ import annotations

import torch

from gemma4_kernels.rounding import Rounding
from gemma4_kernels.torch_norms import rms_normed, rounded


def rmsnorm_residual_scalar(
    x: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    scalar: torch.Tensor,
    eps: float,
    rounding: Rounding,
) -> torch.Tensor:
    """[T, H] in x's dtype."""
    normed = rounded(rms_normed(x, weight, eps), x.dtype, rounding)
    total = rounded(normed + residual.float(), x.dtype, rounding)
    return (total * scalar.float().reshape(1)).to(x.dtype)
