"""The same in torch."""

from __future__ import annotations

import torch


def token_rows(ids: torch.Tensor, table: torch.Tensor, factor: float) -> torch.Tensor:
    """[T, H] in the table's dtype."""
    inside = (ids >= 0) & (ids < table.shape[0])
    rows = table[torch.where(inside, ids, 0)] * factor
    return rows.masked_fill_(~inside[:, None], torch.nan)


def per_layer_rows(
    ids: torch.Tensor, table: torch.Tensor, factor: float, hidden_ids: tuple[int, int, int], pad: int
) -> torch.Tensor:
    """[T, L * P] in the table's dtype."""
    shown = ids.clone()
    for hidden in hidden_ids:
        shown[ids == hidden] = pad
    inside = (shown >= 0) & (shown < table.shape[0])
    return table[torch.where(inside, shown, 0)] * factor
