"""The same in torch."""

from __future__ import annotations

import torch


def window_lists(
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    window: int,
    mapping: torch.Tensor | None,
    starts: torch.Tensor,
    slots: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(kept, first), [N] each; fills starts[1:N + 1] and the first sum(kept) of slots. Reads sizes from the device."""
    requests = lengths.shape[0]
    kept = lengths.clamp(max=window)
    first = lengths - kept
    ends = kept.cumsum(0)
    starts[1 : requests + 1] = ends
    request = torch.repeat_interleave(torch.arange(requests, device=lengths.device), kept)
    place = torch.arange(request.shape[0], device=lengths.device) - (ends - kept)[request]
    found = req_to_token[rows[request].long(), (first[request] + place).long()].long()
    if mapping is not None:
        reached = (found >= 0) & (found < mapping.shape[0])
        found = torch.where(reached, mapping[torch.where(reached, found, 0)], found)
    slots[: found.shape[0]] = found
    return kept, first
