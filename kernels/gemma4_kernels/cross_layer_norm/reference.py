"""The same in torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gemma4_kernels.rounding import Rounding
from gemma4_kernels.torch_norms import rms_normed, rounded

Branch = tuple[torch.Tensor, torch.Tensor]


def cross_layer_norm(
    branches: Sequence[Branch],
    weight: torch.Tensor,
    residual: torch.Tensor,
    scalar: torch.Tensor,
    next_weight: torch.Tensor | None,
    eps: float,
    rounding: Rounding,
    row_ids: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(hidden, normed or None). branches: ((x, unused),), or ((dense, its weight), (experts, its weight))."""
    dtype = residual.dtype
    if row_ids is not None:
        branches = [(rows[row_ids], w) for rows, w in branches]
        residual = residual[row_ids]
    branch = branches[0][0].float()
    if len(branches) == 2:
        first, second = (rounded(rms_normed(rows, w, eps), dtype, rounding) for rows, w in branches)
        branch = rounded(first + second, dtype, rounding)
    normed = rounded(rms_normed(branch, weight, eps), dtype, rounding)
    total = rounded(normed + residual.float(), dtype, rounding)
    hidden = rounded(total * scalar.float().reshape(1), dtype, rounding)
    return hidden.to(dtype), None if next_weight is None else rms_normed(hidden, next_weight, eps).to(dtype)
