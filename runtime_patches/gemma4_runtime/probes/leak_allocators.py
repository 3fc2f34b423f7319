"""Probe `leak-ledger`, what the allocators do: pages handed out, paired and released, of any allocator and page size.

| entry point                                    | event                                                          |
|------------------------------------------------|----------------------------------------------------------------|
| Paged and Token: alloc, alloc_extend, _decode  | handed out, of the pool that this allocator serves             |
| Paged and Token: free                          | freed, or asked to be freed while a free group is open         |
| Paged and Token: clear                         | cleared                                                        |
| Paged: _release_page_ids (0.5.23)              | freed: what free, free_segment and free_page_ids come to       |
| Paged and Token: restore_state                 | freed: pages that are free again; handed out: that no longer are |
| SWA: alloc, alloc_extend, _swa_tail, _decode   | paired: which SWA slots the full slots were given              |
| SWA: set_full_to_swa_mapping                   | paired                                                         |
| SWA: free in a group                           | asked to be freed; the group's end frees on the inner pools    |
| SWA: free_swa, free_swa_segment in a group     | asked to be freed, of the SWA pages that these settle (0.5.23) |

Cost per call: an append of a few numbers. A view, which is what page size 1 hands out and what a row's release names,
costs one small clone; see `leak/event_log.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gemma4_runtime.checks.page_events import FULL, SWA
from gemma4_runtime.leak.ledger import HandOut, ledger_of, pool_of
from gemma4_runtime.release.allocators import free_page_parts, in_free_group, pending_swa_frees


def around_inner_alloc(original: Callable[..., Any], allocator: Any, *args: Any, **kwargs: Any) -> Any:
    """Run around every `alloc…` of a paged or token allocator -> [n] slots or None."""
    before = free_page_parts(allocator)
    slots = original(allocator, *args, **kwargs)
    if slots is not None:
        ledger, pool = pool_of(allocator)
        ledger.handed_out(pool, slots)
        ledger.hand_outs.append(HandOut(pool, before, free_page_parts(allocator), slots))
    return slots


def before_inner_free(allocator: Any, free_index: Any, **_unknown: Any) -> None:
    """Run before `free(free_index)`, [n] slots of this pool."""
    if free_index.numel() == 0:
        return
    ledger, pool = pool_of(allocator)
    (ledger.free_asked if in_free_group(allocator) else ledger.freed)(pool, free_index)


def before_paged_free(allocator: Any, free_index: Any, **_unknown: Any) -> None:
    """Run before 0.5.23's `free(free_index)` of a paged allocator, which releases page ids outside a group."""
    if free_index.numel() and in_free_group(allocator):
        ledger, pool = pool_of(allocator)
        ledger.free_asked(pool, free_index)


def before_free_page_ids(allocator: Any, page_ids: Any, **_unknown: Any) -> None:
    """Run before 0.5.23's `free_page_ids(page_ids)`, [n] pages, to which frees of segments come."""
    if page_ids.numel() and in_free_group(allocator):
        ledger, pool = pool_of(allocator)
        ledger.free_asked(pool, page_ids * allocator.page_size)


def before_release_page_ids(allocator: Any, *page_ids: Any, **_unknown: Any) -> None:
    """Run before 0.5.23's `_release_page_ids(*page_ids)`, [n] pages each: every release of a paged allocator."""
    ledger, pool = pool_of(allocator)
    for pages in page_ids:
        if pages.numel():
            ledger.freed(pool, pages * allocator.page_size)


def after_inner_clear(result: Any, allocator: Any, **_unknown: Any) -> None:
    """Run after `clear()`, which the constructor calls too."""
    ledger, pool = pool_of(allocator)
    ledger.cleared(pool)


def around_restore_state(original: Callable[..., Any], allocator: Any, state: Any) -> Any:
    """Run around `restore_state(state)` of a paged or token allocator, state as its `backup_state` returned it.

    Waits for the device. In this release DFLASH's drafts alone call it.
    """
    before = _free_pages(allocator)
    result = original(allocator, state)
    after = _free_pages(allocator)
    ledger, pool = pool_of(allocator)
    for pages, others, tell in ((after, before, ledger.freed), (before, after, ledger.handed_out)):
        changed = pages[~torch.isin(pages, others)]
        if changed.numel():
            tell(pool, changed * allocator.page_size)
    return result


def _free_pages(allocator: Any) -> torch.Tensor:
    return torch.cat((allocator.free_pages, allocator.release_pages))


def around_swa_alloc(original: Callable[..., Any], allocator: Any, *args: Any, **kwargs: Any) -> Any:
    """Run around `alloc`, `alloc_extend` and `alloc_decode` of a hybrid allocator -> [n] full slots or None."""
    ledger = ledger_of(allocator)
    full = original(allocator, *args, **kwargs)
    if full is not None and ledger.latest_swa_hand_out is not None:
        ledger.paired(full, ledger.latest_swa_hand_out)
    return full


def around_swa_alloc_tail(original: Callable[..., Any], allocator: Any, *args: Any, **kwargs: Any) -> Any:
    """Run around `alloc_extend_swa_tail(...)` -> [n] full slots or None, of which the last have SWA slots."""
    ledger = ledger_of(allocator)
    ledger.latest_swa_hand_out = None
    full = original(allocator, *args, **kwargs)
    if full is not None and ledger.latest_swa_hand_out is not None:
        tail = ledger.latest_swa_hand_out
        ledger.paired(full[-tail.numel() :], tail)
    return full


def before_set_mapping(allocator: Any, full_indices: Any, swa_indices: Any, **_unknown: Any) -> None:
    """Run before `set_full_to_swa_mapping`, [n] each."""
    if full_indices.numel():
        ledger_of(allocator).paired(full_indices, swa_indices)


def before_swa_free(allocator: Any, free_index: Any, **_unknown: Any) -> None:
    """Run before `free(free_index)` of a hybrid allocator, [n] full slots. Outside a group the inner pools tell."""
    if not allocator.is_not_in_free_group and free_index.numel():
        ledger_of(allocator).free_asked(FULL, free_index)


def around_swa_side_free(original: Callable[..., Any], allocator: Any, *args: Any, **kwargs: Any) -> Any:
    """Run around 0.5.23's `free_swa` and `free_swa_segment` of a hybrid allocator.

    In a group they settle at once which SWA pages go, and the group's end, which gives them back, is nobody's call.
    """
    if not in_free_group(allocator):
        return original(allocator, *args, **kwargs)
    before = [len(given) for given, _ in pending_swa_frees(allocator)]
    result = original(allocator, *args, **kwargs)
    for count, (given, unit) in zip(before, pending_swa_frees(allocator), strict=True):
        for one in given[count:]:
            ledger_of(allocator).free_asked(SWA, one if unit == 1 else one * unit)
    return result
