"""The same in torch."""

from __future__ import annotations

import torch

from gemma4_kernels.rounding import Rounding
from gemma4_kernels.torch_norms import rms_normed, rounded


def rmsnorm_add(
    x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor, eps: float, rounding: Rounding
) -> torch.Tensor:
    """[T, H] in x's dtype."""
    normed = rounded(rms_normed(x, weight, eps), x.dtype, rounding)
    return (normed + residual.float()).to(x.dtype)
