"""Probe `swa-allocator`, what is given back. Checked before SGLang takes it.

| entry point      | full slots                                   | SWA peers (mapping)                               |
|------------------|----------------------------------------------|---------------------------------------------------|
| free             | [page, end), in a page in use, no slot twice | 0 (evicted), or [page, end) in a page in use that |
|                  |                                              | serves this full page, at the same offset         |
| free_swa         | [0, end), no slot twice that has a peer      | as above; no entry may be left that leads into a  |
|                  |                                              | page which this call released                     |
| free_group_begin | -                                            | a group that holds slots must not begin again     |
| free_group_end   | no slot in two calls of the group            | as `free`, when the slots were handed in          |
| after all but    | every page that was named is on the pool's   | likewise                                          |
| free_group_begin | free list                                    |                                                   |

Two calls of one group may name different slots of one page: the page is freed once. Outside a group the second such
call frees a page that is free.

After `free` the mapping may keep entries of slots that were not named: with MTP, rejected draft tokens in a request's
last page. Their full page is free as well, and they are overwritten before they are used, so they are no violation.
After a `free_swa` alone, the full page lives on with them, and they are.

Cost per call: one read-back, O(n log n) in the slots of the call. `free_swa` with pages adds O(pages * page size) over
the pages that it names, and waits for the device up to four times more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from gemma4_dumps.allocator_calls import GIVE_EACH_PAGE
from gemma4_runtime.allocator_history import free_lists
from gemma4_runtime.checks.lost_pages import (
    check_dropped_group,
    check_given_back,
    check_group_pages,
    check_still_mapped,
    got_others,
)
from gemma4_runtime.checks.slot_free import check_free, check_leftover_mappings, check_repeats, leftover_mappings
from gemma4_runtime.checks.violation import Violation
from gemma4_runtime.probes.swa_allocator_state import SPACES, Books, books_of, report_lost, report_slots, uppers
from gemma4_runtime.release import SWATokenToKVPoolAllocator
from gemma4_runtime.release.allocators import in_free_group


def around_free(original: Callable[..., Any], allocator: Any, free_index: torch.Tensor) -> Any:
    """Run around `free(free_index)`, [n] full slots."""
    books = books_of(allocator)
    if books.inside or free_index.numel() == 0:
        return original(allocator, free_index)
    peers = check_call(books, allocator, free_index, "free", keeps_full=False)
    if in_free_group(allocator):
        books.history.end(allocator)
        return original(allocator, free_index)
    with books.call():
        result = original(allocator, free_index)
    books.history.end(allocator)
    check_settled(books, allocator, free_index, peers, "free")
    books.commit(allocator, lambda: books.ledger.release(free_index, peers))
    return result


def around_free_swa(original: Callable[..., Any], allocator: Any, free_index: torch.Tensor) -> Any:
    """Run around `free_swa(free_index)`, [n] full slots that keep their full page."""
    books = books_of(allocator)
    if books.inside or free_index.numel() == 0:
        return original(allocator, free_index)
    peers = check_call(books, allocator, free_index, "free_swa", keeps_full=True)
    with books.call():
        result = original(allocator, free_index)
    books.history.end(allocator)
    check_settled(books, allocator, None, peers, "free_swa")
    if allocator.page_size > 1 and not books.doubted:
        check_leftovers(books, allocator, free_index, peers)
    books.commit(allocator, lambda: books.ledger.release_swa(peers))
    return result


def around_free_group_begin(original: Callable[..., Any], allocator: Any) -> Any:
    """Run around `free_group_begin()` of every allocator; only a hybrid-SWA one is looked at."""
    if isinstance(allocator, SWATokenToKVPoolAllocator) and in_free_group(allocator):
        pending = allocator.free_group
        violation = check_dropped_group(pending, allocator.page_size, uppers(allocator)[0])
        if violation is not None:
            full = torch.cat(pending)
            summary = f"free_group_begin forgets {violation.count} slots that the group before it was to free"
            peers = allocator.full_to_swa_index_mapping[full]
            books_of(allocator).history.begin(allocator, "free_group_begin", full=full, swa=peers)
            report_slots(allocator, violation, full, peers, "free_group_begin", lambda: summary)
    return original(allocator)


def around_free_group_end(original: Callable[..., Any], allocator: Any) -> Any:
    """Run around `free_group_end()` of every allocator; only a hybrid-SWA one is looked at."""
    if not (isinstance(allocator, SWATokenToKVPoolAllocator) and allocator.free_group):
        return original(allocator)
    books = books_of(allocator)
    full = torch.cat(allocator.free_group)
    peers = allocator.full_to_swa_index_mapping[full]
    books.history.begin(allocator, "free_group_end", full=full, swa=peers)
    # Each call of the group has been checked; what is left is a slot that two of them named.
    violation = check_repeats(full, allocator.page_size, uppers(allocator)[0])
    if violation is not None:
        summary = f"free_group_end frees full slot {violation.first.value} twice: two calls of the group named it"
        report_slots(allocator, violation, full, peers, "free_group_end", lambda: summary)
    with books.call():
        result = original(allocator)
    books.history.end(allocator)
    check_settled(books, allocator, full, peers, "free_group_end")
    books.commit(allocator, lambda: books.ledger.release(full, peers))
    return result


def check_call(
    books: Books, allocator: Any, full: torch.Tensor, entry: str, keeps_full: bool, settled: bool = False
) -> torch.Tensor:
    """Report what must not be freed. Return the SWA peers of `full`, as they are before the call.

    Args:
        books: Of the allocator.
        allocator: A pool pair's.
        full: Full slots [n].
        entry: The function that is called.
        keeps_full: Whether the full slots stay in use.
        settled: Whether the release settles within a group what is freed, also of SWA slots alone, as calls come in.
    """
    mapping, (full_upper, swa_upper) = allocator.full_to_swa_index_mapping, uppers(allocator)
    # A slot out of range is what is looked for; it must not index the mapping.
    peers = mapping[full.clamp(0, full_upper - 1)]
    grouped = (settled or not keeps_full) and in_free_group(allocator)
    told = {"grouped": grouped, "settled": grouped and settled}
    books.history.begin(allocator, entry, told, full=full, swa=peers)
    by_pages = entry in GIVE_EACH_PAGE and not getattr(allocator, "swa_req_ring", False)
    violation = check_free(full, peers, books.ledger, full_upper, swa_upper, keeps_full, by_pages)
    if violation is not None:
        describe = partial(_summary, violation, books, allocator, full, entry)
        report_slots(allocator, violation, full, peers, entry, describe)
    return peers


def _summary(violation: Violation, books: Books, allocator: Any, full: torch.Tensor, entry: str) -> str:
    bad, page = violation.first, allocator.page_size
    here, slot = bad.value // page, int(full[bad.row])
    if violation.verdict == "free_out_of_range":
        space = ("full", "SWA")[bad.column]
        through = f", mapped from full slot {slot}," if bad.column else ""
        dummy = ": page 0 is the dummy and never free" if 0 <= bad.value < page else ""
        legal = f"legal are {bad.lower} to {bad.upper - 1}{dummy}"
        return f"{entry} is about to free {space} slot {bad.value}{through} {legal}"
    if violation.verdict == "double_free":
        how = "is named twice" if bool(books.ledger.full_live[here]) else f"is free already, with its page {here}"
        return f"{entry}: full slot {bad.value} {how}"
    leads = f"{entry}: full slot {slot} still maps to SWA slot {bad.value}, whose page {here}"
    if violation.verdict == "stale_mapping":
        return f"{leads} is free"
    owner = int(books.ledger.swa_owner[here])
    return f"{leads} serves full page {owner}; this slot is in full page {slot // page}"


def check_settled(books: Books, allocator: Any, full: torch.Tensor | None, peers: torch.Tensor, entry: str) -> None:
    """Report pages of a call that was to settle them, and are not free after it.

    Where another full page was freed in the place of one that was named, its SWA page is in the place of the missing
    one too: both are left to the audit, which sees all four.

    Args:
        books: Of the allocator, whose lists are still those before the call.
        allocator: A pool pair's.
        full: Full slots [any] that were to be given back; None: they stay in use.
        peers: SWA slots [any] that were to be given back, 0 for none.
        entry: The function that was called.
    """
    before, after, page = books.lists, free_lists(allocator), allocator.page_size
    if before is None or books.doubted:
        return
    counts = books.ledger.full_live.numel(), books.ledger.swa_owner.numel()
    for pool, slots in enumerate((full, peers[peers > 0])):
        if slots is None:
            continue
        lists = slice(2 * pool, 2 * pool + 2)
        named = torch.unique(slots.to(torch.int64) // page)
        violation = check_given_back(before[lists], after[lists], named, counts[pool])
        if violation is None:
            continue
        if full is not None and got_others(before[:2], after[:2], torch.unique(full.to(torch.int64) // page)):
            return
        how = "named by a call that gives back, and on no free list after it"
        report_lost(allocator, violation, entry, SPACES[pool], how)


def not_in_the_group(
    books: Books, allocator: Any, full: torch.Tensor | None, peers: torch.Tensor
) -> Iterator[tuple[str, Violation, torch.Tensor]]:
    """Yield, of each pool, pages that were given back in a group and that it does not hold, and what it has instead.

    Args:
        books: Of the allocator.
        allocator: A pool pair's, of a release that puts aside, of each pool, what a group's calls give back.
        full: Full slots [any] that were given back; None: they stay in use.
        peers: SWA slots [any] that were given back, 0 for none.
    """
    inner, page = allocator.full_attn_allocator, allocator.page_size
    if getattr(allocator, "swa_req_ring", False):
        return
    piles = (
        (full, inner.free_group, getattr(inner, "free_page_ids_group", ()), books.ledger.full_live),
        (peers[peers > 0], allocator.swa_free_group, allocator.swa_page_ids_group, books.ledger.swa_owner),
    )
    for space, (slots, by_slot, by_page, table) in zip(SPACES, piles, strict=True):
        if slots is None:
            continue
        # A call that translates a whole page finds 0 where nobody has a slot.
        aside = [torch.unique(one[one != 0].to(torch.int64) // page) for one in by_slot or ()]
        held = torch.cat([*aside, *(one.to(torch.int64) for one in by_page or ()), slots.new_zeros(0).to(torch.int64)])
        violation, instead = check_group_pages(torch.unique(slots.to(torch.int64) // page), held, table.numel())
        if violation is not None:
            yield space, violation, instead


def check_group(books: Books, allocator: Any, full: torch.Tensor | None, peers: torch.Tensor) -> None:
    """Report what a group that is about to end does not hold, though its calls put it aside. Arguments: as above."""
    if books.doubted or books.short:
        return
    for space, violation, instead in not_in_the_group(books, allocator, full, peers):
        how = "put aside by a call of the group, and not in it as it ends"
        report_lost(allocator, violation, "free_group", space, how, instead)


def check_leftovers(books: Books, allocator: Any, full: torch.Tensor, peers: torch.Tensor) -> None:
    page, mapping = allocator.page_size, allocator.full_to_swa_index_mapping
    count = books.ledger.swa_owner.numel()
    # 0.5.23 puts what a group gives back aside, by page or by slot.
    aside = [*(getattr(allocator, "swa_page_ids_group", None) or ())]
    aside += [slots // page for slots in getattr(allocator, "swa_free_group", None) or ()]
    untouched = check_still_mapped(peers, mapping[full], (*free_lists(allocator)[2:], *aside), page, count)
    if untouched is not None:
        how = "named by a call that gives back, and still mapped after it"
        report_lost(allocator, untouched, "free_swa", "swa", how)
    left = leftover_mappings(full, peers, mapping, page)
    books.history.tell(left=(left[:, 0], left[:, 1]))
    violation = check_leftover_mappings(left, page, uppers(allocator)[1])
    if violation is not None:
        slot, bad = int(left[0, 0]), violation.first
        was = "was" if bool((full == slot).any()) else "was not"
        summary = (
            f"free_swa released SWA page {bad.value // page} whole, and full slot {slot}, which it {was} told of, "
            f"still maps to slot {bad.value} of it"
        )
        report_slots(allocator, violation, left[:, 0], left[:, 1], "free_swa", lambda: summary)
