"""The parts of the torch path: a CPU's way, and what the kernels are described by."""

from __future__ import annotations

import torch

from gemma4_kernels.rounding import Rounding


def rounded(value: torch.Tensor, dtype: torch.dtype, rounding: Rounding) -> torch.Tensor:
    """fp32 `value` after a stay in memory as `dtype`, if eager has one there."""
    return value.to(dtype).float() if rounding is Rounding.EAGER else value


def rms_normed(value: torch.Tensor, weight: torch.Tensor | None, eps: float) -> torch.Tensor:
    """Return value / rms(value) * weight over the last dimension, in fp32, or fp64 if `value` is."""
    value = value if value.dtype == torch.float64 else value.float()
    normed = value * torch.pow(value.pow(2).mean(-1, keepdim=True) + eps, -0.5)
    return normed if weight is None else normed * weight.to(value.dtype)
