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


def check_given_back(
    before: Sequence[torch.Tensor], after: Sequence[torch.Tensor], pages: torch.Tensor, count: int
) -> Violation | None:
    """Report pages that a free was told of, and that are on no list after it.

    Only the lists' lengths are looked at if they have grown by as many pages. A list that got others in their place is
    left to the audit, which sees both.

    Args:
        before: the lists of free page ids before it, [any] each.
        after: the lists after it.
        pages: [n] page ids that it was told of, each once.
        count: pages in the pool, dummy page 0 included.

    Returns:
        The violation (row: position in the missing pages, column 0, value: page id) or None.
    """
    grown = sum(one.numel() for one in after) - sum(one.numel() for one in before)
    if grown >= pages.numel():
        return None
    if got_others(before, after, pages):
        return None
    return _lost(pages[~torch.isin(pages, torch.cat(tuple(after)))], 1, count)


def got_others(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor], pages: torch.Tensor) -> bool:
    """Return whether a free list got pages that the call was not told of, even such as were on it.

    Args:
        before: the lists of free page ids before it, [any] each.
        after: the lists after it.
        pages: [n] page ids that the call was told of.
    """
    had, has = (int((~torch.isin(torch.cat(tuple(lists)), pages)).sum()) for lists in (before, after))
    return has > had


def check_group_pages(named: torch.Tensor, held: torch.Tensor, count: int) -> tuple[Violation | None, torch.Tensor]:
    """Report pages that calls of a group have given back, and that the group does not hold as it ends.

    Args:
        named: [any] page ids of its calls, each once.
        held: [any] page ids that it holds, each once for each call.
        count: pages in the pool, dummy page 0 included.

    Returns: the violation (row: position in the missing pages, column 0, value: page id) or None, and [any, 2] what it
        holds too often, or in their place: page id, and how often. One synchronisation.
    """
    distinct, times = torch.unique(held, return_counts=True)
    violation = _lost(named[~torch.isin(named, distinct)], 1, count)
    return violation, torch.stack((distinct, times), dim=1)[(times > 1) | ~torch.isin(distinct, named)]


def check_still_mapped(
    peers: torch.Tensor, mapped: torch.Tensor, after: Sequence[torch.Tensor], page_size: int, count: int
) -> Violation | None:
    """Report SWA pages that a call was told to give back, and to which the mapping leads as before.

    Args:
        peers: [n] SWA slots of what it was told of, 0 for none.
        mapped: [n] what the mapping has for them after it.
        after: the lists of free page ids after it, [any] each.
        page_size: tokens of a page.
        count: pages in the pool, dummy page 0 included.

    Returns: the violation (row: position in the pages, column 0, value: page id) or None. One synchronisation.
    """
    left = peers[(peers > 0) & (peers == mapped)]
    if left.numel() == 0:
        return None
    pages = torch.unique(left.to(torch.int64) // page_size)
    return _lost(pages[~torch.isin(pages, torch.cat(tuple(after)))], 1, count)


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
