"""The same in torch."""

from __future__ import annotations

import torch

from gemma4_kernels.rounding import Rounding
from gemma4_kernels.torch_norms import rms_normed, rounded


def ple_front_end(
    projection: torch.Tensor,
    weight: torch.Tensor,
    ple: torch.Tensor | None,
    factor: float,
    eps: float,
    rounding: Rounding,
) -> torch.Tensor:
    """[T, L, P] in projection's dtype."""
    dtype = projection.dtype
    scaled = rounded(projection.float() * factor, dtype, rounding)
    normed = rounded(rms_normed(scaled, weight, eps), dtype, rounding)
    if ple is None:
        return normed.to(dtype)
    return (rounded(normed + ple.float(), dtype, rounding) * 2**-0.5).to(dtype)
