"""The same in torch."""

from __future__ import annotations

import torch


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
