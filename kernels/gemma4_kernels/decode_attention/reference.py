"""The same in torch."""

from __future__ import annotations

from typing import NamedTuple

import torch

from gemma4_kernels.qk_norm_rope import reference as heads
from gemma4_kernels.rounding import Rounding


class NewKeys(NamedTuple):
    """What a layer with keys of its own adds for a step's tokens, and where.

    Attributes:
        keys: [R, G, D] as the projection has them, in q's dtype, heads beside each other.
        values: Like keys.
        weight: [D] of the norm of keys; values have none.
        places: int32 or int64 [R]: the rows of the pools to write; that of request r is the last of its slots.
    """

    keys: torch.Tensor
    values: torch.Tensor
    weight: torch.Tensor
    places: torch.Tensor


class Front(NamedTuple):
    """What is left to do ahead of the attention of queries that are as the projection has them.

    Attributes:
        q_weight: [D] of the norm of queries.
        cos_sin_cache: [P, D]: for each position D/2 cosines, then D/2 sines.
        positions: int32 or int64 [R], each 0..P-1. Not checked.
        eps: Of the norms.
        new: None in a layer that reads another layer's keys.
    """

    q_weight: torch.Tensor
    cos_sin_cache: torch.Tensor
    positions: torch.Tensor
    eps: float
    new: NewKeys | None = None


def in_front(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, front: Front) -> torch.Tensor:
    """Return q [R, H, D] normed and turned; write the new keys and values into their places."""
    new = front.new
    made = heads.qk_norm_rope(
        q.flatten(1),
        None if new is None else new.keys.flatten(1),
        None if new is None else new.values.flatten(1),
        front.q_weight,
        None if new is None else new.weight,
        front.cos_sin_cache,
        front.positions,
        front.eps,
        Rounding.FP32,
    )
    if new is not None and made.k is not None and made.v is not None:
        keys[new.places.long()] = made.k.view_as(new.keys)
        values[new.places.long()] = made.v.view_as(new.values)
    return made.q.view(q.shape)


def decode_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    starts: torch.Tensor,
    slots: torch.Tensor,
    scale: float,
) -> torch.Tensor:
    """Return the attention of q [R, H, D] over keys and values [S, G, D], [R, H, D] in q's dtype."""
    out = torch.zeros_like(q)
    group = q.shape[1] // keys.shape[1]
    bounds = starts.tolist()
    for request in range(q.shape[0]):
        mine = slots[bounds[request] : bounds[request + 1]].long()
        if len(mine):
            # [G, L, D] and [G, group, D]
            k, v = keys[mine].transpose(0, 1).float(), values[mine].transpose(0, 1).float()
            scores = q[request].float().unflatten(0, (-1, group)) @ k.transpose(1, 2) * scale
            out[request] = (scores.softmax(-1).to(values.dtype).float() @ v).flatten(0, 1).to(q.dtype)
    return out
