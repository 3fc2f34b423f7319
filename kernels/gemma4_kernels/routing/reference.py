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
    # A stable sort has ties in the order of the ids, which torch.topk does not promise.
    ids = torch.sort(_keys(value), dim=-1, descending=True, stable=True).indices[:, :top_k]
    chosen, scale = value.gather(1, ids), per_expert_scale[ids]
    if eager:
        weights = chosen / chosen.sum(dim=-1, keepdim=True) * scale
    else:
        weights = torch.softmax(chosen.float(), dim=-1) * scale.float()
    return weights.float(), ids.to(torch.int32)


def _keys(value: torch.Tensor) -> torch.Tensor:
    """int32 in the order of `value`, as the kernel's: torch.sort on CUDA has a NaN with the sign bit below -inf."""
    # Adding 0 makes -0 into +0.
    bits = (value.float() + 0.0).view(torch.int32)
    return torch.where(value.isnan(), 2**31 - 1, bits ^ ((bits >> 31) & 0x7FFFFFFF))
