"""Shared by the slot checks: per-entry codes on the device, read back once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gemma4_runtime.checks.violation import MAX_LISTED, BadIndex, Violation

FULL, SWA = 0, 1
"""Columns of a `slots` tensor: one row per token, its full-pool slot and its SWA slot."""


def repeated(values: torch.Tensor) -> torch.Tensor:
    """[n] bool: entries of `values` [n] that stand at an earlier position as well. No synchronisation."""
    ordered, positions = values.sort(stable=True)
    again = torch.zeros_like(values, dtype=torch.bool)
    again[positions[1:]] = ordered[1:] == ordered[:-1]
    return again


def coded(*masks: torch.Tensor) -> torch.Tensor:
    """[n] int8: the number, counted from 1, of the first of `masks` ([n] bool each) that is set; 0 for none."""
    codes = torch.zeros_like(masks[0], dtype=torch.int8)
    for number in range(len(masks), 0, -1):
        codes.masked_fill_(masks[number - 1], number)
    return codes


def worst_violation(
    codes: Sequence[torch.Tensor], slots: Sequence[torch.Tensor], verdicts: Sequence[str], bounds: Sequence[range]
) -> Violation | None:
    """Return the entries of the lowest code; of two columns with that code, the first. One device synchronisation.

    Args:
        codes: per column [n] int8; 0 is legal, k stands for verdicts[k - 1].
        slots: per column [n] integers, what to list.
        verdicts: by code.
        bounds: per column, the legal slots.
    """
    table = torch.stack(tuple(codes), dim=1)
    if not bool(table.any()):
        return None
    table = table.cpu()
    code = int(table[table > 0].min())
    column = int((table == code).any(dim=0).nonzero()[0])
    rows = (table[:, column] == code).nonzero().flatten()
    legal, values = bounds[column], slots[column][rows[:MAX_LISTED].to(slots[column].device)].tolist()
    listed = tuple(
        BadIndex(row, column, value, legal.start, legal.stop)
        for row, value in zip(rows[:MAX_LISTED].tolist(), values, strict=True)
    )
    return Violation(verdicts[code - 1], listed, rows.numel())
