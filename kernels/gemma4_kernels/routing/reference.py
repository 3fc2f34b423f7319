"""The same in torch."""

from __future__ import annotations

import torch

from gemma4_kernels.rounding import Rounding


def routing(
    logits: torch.Tensor, per_expert_scale: torch.Tensor, top_k: int, rounding: Rounding
) -> tuple[torch.Tensor, torch.Tensor]:
    """(weights [T, k] fp32, ids [T, k] int32)."""
    eager = rounding is Rounding.EAGER
    value = torch.softmax(logits, dim=-1) if eager else logits
    # A stable sort has ties in the order of the ids, and NaN first; torch.topk promises neither.
    ids = torch.sort(value, dim=-1, descending=True, stable=True).indices[:, :top_k]
    chosen, scale = value.gather(1, ids), per_expert_scale[ids]
    if eager:
        weights = chosen / chosen.sum(dim=-1, keepdim=True) * scale
    else:
        weights = torch.softmax(chosen.float(), dim=-1) * scale.float()
    return weights.float(), ids.to(torch.int32)
