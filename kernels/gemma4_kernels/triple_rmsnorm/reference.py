"""The same in torch."""

from __future__ import annotations

from typing import NamedTuple

import torch

from gemma4_kernels.rounding import Rounding
from gemma4_kernels.torch_norms import rms_normed, rounded


class TripleNormed(NamedTuple):
    """Each [T, H] in attention's dtype; see spec.py."""

    residual: torch.Tensor
    router: torch.Tensor
    dense: torch.Tensor
    experts: torch.Tensor


def triple_rmsnorm(
    attention: torch.Tensor,
    weight: torch.Tensor,
    residual: torch.Tensor,
    router_scale: torch.Tensor,
    dense_weight: torch.Tensor,
    experts_weight: torch.Tensor,
    eps: float,
    rounding: Rounding,
) -> TripleNormed:
    """Return four tensors [T, H] in attention's dtype."""
    dtype, scale, root = attention.dtype, router_scale.float(), attention.shape[1] ** -0.5
    normed = rounded(rms_normed(attention, weight, eps), dtype, rounding)
    total = rounded(normed + residual.float(), dtype, rounding)
    unit = rounded(rms_normed(total, None, eps), dtype, rounding)
    router = rounded(unit * scale, dtype, rounding) * root
    dense, experts = (rms_normed(total, w, eps) for w in (dense_weight, experts_weight))
    return TripleNormed(total.to(dtype), router.to(dtype), dense.to(dtype), experts.to(dtype))
