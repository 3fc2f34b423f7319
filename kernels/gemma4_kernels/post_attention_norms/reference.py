"""The same in torch."""

from __future__ import annotations

import torch

from gemma4_kernels.rounding import Rounding
from gemma4_kernels.torch_norms import rms_normed, rounded


def post_attention_norms(
    attention: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    next_weight: torch.Tensor,
    eps: float,
    rounding: Rounding,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(residual', normed), each [T, H] in attention's dtype."""
    dtype = attention.dtype
    normed = rounded(rms_normed(attention, weight, eps), dtype, rounding)
    total = rounded(normed + residual.float(), dtype, rounding)
    return total.to(dtype), rms_normed(total, next_weight, eps).to(dtype)
