"""The same in torch."""

from __future__ import annotations

from typing import NamedTuple

import torch

from gemma4_kernels.rounding import Rounding
from gemma4_kernels.torch_norms import rms_normed, rounded
from gemma4_kernels.triple_rmsnorm.router_scale import RouterScale


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
    router_scale: RouterScale,
    dense_weight: torch.Tensor,
    experts_weight: torch.Tensor,
    eps: float,
) -> TripleNormed:
    """Four tensors [T, H] in attention's dtype."""
    dtype, (scale, rounding) = attention.dtype, router_scale
    normed = rounded(rms_normed(attention, weight, eps), dtype, rounding)
    total = rounded(normed + residual.float(), dtype, rounding)
    router = rounded(rounded(rms_normed(total, None, eps), dtype, rounding) * scale, dtype, rounding)
    if rounding is Rounding.EAGER:
        router = router * attention.shape[1] ** -0.5
    dense, experts = (rms_normed(total, w, eps) for w in (dense_weight, experts_weight))
    return TripleNormed(total.to(dtype), router.to(dtype), dense.to(dtype), experts.to(dtype))
