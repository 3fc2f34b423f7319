"""The same in torch."""

from __future__ import annotations

from typing import NamedTuple

import torch

from gemma4_kernels.rounding import Rounding
from gemma4_kernels.torch_norms import rms_normed, rounded


class Roped(NamedTuple):
    """Each [T, heads * D] in q's dtype; see spec.py. k and v are None where a layer has none of its own."""

    q: torch.Tensor
    k: torch.Tensor | None
    v: torch.Tensor | None


def qk_norm_rope(
    q: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    q_weight: torch.Tensor,
    k_weight: torch.Tensor | None,
    cos_sin_cache: torch.Tensor,
    positions: torch.Tensor,
    eps: float,
    rounding: Rounding,
) -> Roped:
    """New tensors; T at least 1."""
    head_dim = q_weight.shape[0]
    cos, sin = cos_sin_cache[positions.long()].float()[:, None].chunk(2, dim=-1)

    def normed(rows: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        return rounded(rms_normed(rows.unflatten(-1, (-1, head_dim)), weight, eps), q.dtype, rounding)

    def rotated(rows: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        first, second = normed(rows, weight).chunk(2, dim=-1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        return turned.flatten(-2).to(q.dtype)

    if k is None or v is None:
        return Roped(rotated(q, q_weight), None, None)
    return Roped(rotated(q, q_weight), rotated(k, k_weight), normed(v, None).flatten(-2).to(q.dtype))
