"""Check for pages that left a free list and reached nobody."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gemma4_runtime.checks.violation import MAX_LISTED, BadIndex, Violation


def check_failed_allocation(
    before: Sequence[torch.Tensor], after: Sequence[torch.Tensor], count: int
) -> Violation | None:
    """Report pages that an allocation took although it then gave nothing.

    Synchronises only if pages are missing.

    Args:
        before: the lists of free page ids before it, [any] each. Only their lengths are looked at if nothing is
            missing.
        after: the lists after it.
        count: pages in the pool, dummy page 0 included.

    Returns:
        The violation (row: position in the missing pages, column 0, value: page id) or None.
    """
    if sum(pages.numel() for pages in after) >= sum(pages.numel() for pages in before):
        return None
    had, has = torch.cat(tuple(before)), torch.cat(tuple(after))
    return _lost(had[~torch.isin(had, has)], 1, count)


def check_restored(swa_owner: torch.Tensor, live_after: torch.Tensor) -> Violation | None:
    """Report SWA pages that were freed, mapping and all, after the state was saved that is now put back.

    They come back as pages in use, and no mapping entry leads to them any more: nobody can free them.

    Args:
        swa_owner: [pages] owners before the restore, 0 for a free page.
        live_after: [pages] bool, in use after it.

    Returns: the violation (row: position in the lost pages, column 0, value: page id) or None. One synchronisation.
    """
    return _lost(((swa_owner == 0) & live_after).nonzero().flatten(), 1, swa_owner.numel())


def check_dropped_group(pending: Sequence[torch.Tensor], page_size: int, full_upper: int) -> Violation | None:
    """Report slots that a free group holds, [any] per call, when a new group is about to forget them.

    Returns: the violation (row: position in the concatenation, column 0) or None. No synchronisation if there are none.
    """
    if not pending:
        return None
    return _lost(torch.cat(tuple(pending)), page_size, full_upper)


def _lost(values: torch.Tensor, lower: int, upper: int) -> Violation | None:
    if values.numel() == 0:
        return None
    listed = tuple(BadIndex(row, 0, value, lower, upper) for row, value in enumerate(values[:MAX_LISTED].tolist()))
    return Violation("pool_leak", listed, values.numel())
