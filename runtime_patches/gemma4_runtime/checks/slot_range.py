"""Check what an allocator handed out, or was handed: slots against their pool, lengths against their copy."""

from __future__ import annotations

import torch

from gemma4_runtime.checks.violation import MAX_LISTED, BadIndex, Violation


def check_slot_range(
    slots: torch.Tensor, lower: int, upper: int, minus_one_legal: torch.Tensor | bool = False
) -> Violation | None:
    """Report slots outside [lower, upper), -1 excepted where it is legal.

    Args:
        slots: [n] integer token slots.
        lower: first legal slot: page_size for a paged pool (page 0 is the dummy), 1 for single tokens.
        upper: exclusive; pool size in tokens + page_size.
        minus_one_legal: True, False, or [n] bool: where -1 ("no earlier token") may stand.

    Returns: the violation (row: position in `slots`, column 0) or None. One device synchronisation.
    """
    exempt = (slots == -1) & torch.as_tensor(minus_one_legal, device=slots.device)
    where = (((slots < lower) | (slots >= upper)) & ~exempt).nonzero().flatten()
    count = where.shape[0]
    if count == 0:
        return None
    rows = where[:MAX_LISTED]
    listed = tuple(
        BadIndex(row, 0, value, lower, upper) for row, value in zip(rows.tolist(), slots[rows].tolist(), strict=True)
    )
    return Violation("alloc_out_of_range", listed, count)


def check_copies(lens: torch.Tensor, on_host: torch.Tensor) -> Violation | None:
    """Report lengths of a batch whose copy is another.

    Args:
        lens: [requests] lengths, on the host already.
        on_host: [requests] their copy that SGLang keeps there.

    Returns: the violation (row: the request; value: the copy; it had to be the length) or None.
    """
    if lens.shape != on_host.shape:
        return None
    pairs = enumerate(zip(on_host.tolist(), lens.tolist(), strict=True))
    bad = [BadIndex(row, 0, copy, length, length + 1) for row, (copy, length) in pairs if copy != length]
    return Violation("length_differs", tuple(bad[:MAX_LISTED]), len(bad)) if bad else None
