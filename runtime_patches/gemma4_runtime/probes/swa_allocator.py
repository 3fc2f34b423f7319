"""Probe `swa-allocator`, what is handed out: slots inside their pool, free so far, each with an SWA slot of its own.

Backend-independent: it traps at the hand-out, before any kernel of any backend writes or reads there. SGLang's own
write of the mapping comes first: a full slot too large for the mapping fails there already. On a CPU that is an
IndexError, and what the pools had given until then is looked at; on CUDA it is a device assertion.

| entry point             | full slots           | SWA peers (mapping)             | last_loc                          |
|-------------------------|----------------------|---------------------------------|-----------------------------------|
| alloc                   | [1, end)             | [1, swa end)                    | -                                 |
| alloc_extend            | [page, end)          | [page, swa end)                 | -1 only where the prefix is empty |
| alloc_extend_swa_tail   | [page, end)          | 0 before the tail, then as above| -1 only where the prefix is empty |
| alloc_decode            | [page, end)          | [page, swa end)                 | -1 only for a first token         |
| set_full_to_swa_mapping | [page, end)          | [page, swa end), in use, each   | -                                 |
|                         |                      | slot once, of this full page or |                                   |
|                         |                      | of one without an entry for it  |                                   |

The first four are given the lengths of a batch twice, on the device and on the host, which have to be alike. In them, a
slot that opens a page must find it free in both pools, and the call must have taken it off the full pool's list; any
other slot continues a page that this call opened or that is in use, with the SWA page that serves it
(`check_hand_out`); and of who is within a page the first one is behind the last that it had (`check_goes_on`). If they
give nothing, neither pool's free list may be shorter than before.

Cost per call: one comparison and read-back for last_loc, two for the slots; O(n log n) in the slots of the call, never
in the pool.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gemma4_runtime.checks.lost_pages import check_failed_allocation, check_restored
from gemma4_runtime.checks.slot_free import check_free, check_leftover_mappings, check_repeats, leftover_mappings
from gemma4_runtime.checks.slot_hand_out import (
    check_goes_on,
    check_hand_out,
    check_mapping_write,
    entries_of_owners,
    taken_off,
)
from gemma4_runtime.checks.slot_ledger import UNKNOWN, SlotLedger, pages_in_use
from gemma4_runtime.checks.slot_range import check_copies, check_slot_range
from gemma4_runtime.checks.violation import Violation
from gemma4_runtime.errors import VerificationFailed
from gemma4_runtime.probes.swa_allocator_state import (
    SPACES,
    Books,
    books_of,
    report_last_loc,
    report_lengths,
    report_lost,
    report_slots,
    uppers,
)
from gemma4_runtime.release.allocators import free_page_lists


def around_alloc(original: Callable[..., Any], allocator: Any, need_size: int) -> Any:
    """Run around `alloc(need_size)` -> [need_size] or None."""
    _begin(allocator, "alloc", need=int(need_size))
    return _hand_out(allocator, "alloc", lambda: original(allocator, need_size))


def around_alloc_extend(original: Callable[..., Any], allocator: Any, prefix_lens: Any, *args: Any, **kw: Any) -> Any:
    """Run around `alloc_extend(prefix_lens, prefix_lens_cpu, seq_lens, seq_lens_cpu, last_loc, extend_num_tokens)`."""
    lens, last_loc = _extend_arguments(prefix_lens, *args, **kw)
    _begin(allocator, "alloc_extend", **lens, last_loc=last_loc)
    _check_lengths(allocator, "alloc_extend", last_loc, prefix_lens, *args, **kw)
    _check_last_loc(allocator, last_loc, prefix_lens == 0, "alloc_extend")
    goes_on = last_loc, torch.tensor(lens["seq_lens"]) - torch.tensor(lens["prefix_lens"])
    return _hand_out(allocator, "alloc_extend", lambda: original(allocator, prefix_lens, *args, **kw), goes_on=goes_on)


def around_alloc_extend_tail(
    original: Callable[..., Any], allocator: Any, prefix_lens: Any, *args: Any, **kw: Any
) -> Any:
    """Run around `alloc_extend_swa_tail(..., extend_num_tokens, swa_tail_len)`: only the tail has SWA peers."""
    lens, last_loc = _extend_arguments(prefix_lens, *args, **kw)
    tail = kw["swa_tail_len"] if "swa_tail_len" in kw else args[5]
    entry = "alloc_extend_swa_tail"
    _begin(allocator, entry, **lens, last_loc=last_loc, swa_tail=int(tail))
    _check_lengths(allocator, entry, last_loc, prefix_lens, *args, **kw)
    _check_last_loc(allocator, last_loc, prefix_lens == 0, entry)
    return _hand_out(allocator, entry, lambda: original(allocator, prefix_lens, *args, **kw), swa_tail=tail)


def around_alloc_decode(
    original: Callable[..., Any], allocator: Any, seq_lens: Any, seq_lens_cpu: Any, last_loc: Any
) -> Any:
    """Run around `alloc_decode` -> [requests] or None; seq_lens counts the new token."""
    _begin(allocator, "alloc_decode", seq_lens=_lens(seq_lens_cpu), last_loc=last_loc)
    _check_copies(allocator, "alloc_decode", last_loc, seq_lens, seq_lens_cpu)
    _check_last_loc(allocator, last_loc, seq_lens <= 1, "alloc_decode")
    goes_on = last_loc, torch.ones(last_loc.numel(), dtype=torch.int64)
    call = lambda: original(allocator, seq_lens, seq_lens_cpu, last_loc)  # noqa: E731
    return _hand_out(allocator, "alloc_decode", call, goes_on=goes_on)


def before_set_mapping(allocator: Any, full_indices: Any, swa_indices: Any, **_unknown: Any) -> None:
    """Run before `set_full_to_swa_mapping`, [n] each, which rebuilds entries of pages that another path allocated."""
    if full_indices.numel() == 0:
        return
    books = books_of(allocator)
    if books.inside:
        # Later releases write the mapping of an allocation by this method; the allocation itself is checked.
        return
    books.history.begin(allocator, "set_full_to_swa_mapping", full=full_indices, swa=swa_indices)
    left = entries_of_owners(full_indices, swa_indices, books.ledger, allocator.full_to_swa_index_mapping)
    if not (books.ledger.owners(swa_indices) == UNKNOWN).any():
        books.history.tell(left=(left[:, 0], left[:, 1]))
    violation = check_mapping_write(full_indices, swa_indices, books.ledger, left, *uppers(allocator))
    if violation is not None:
        _report(books, allocator, violation, full_indices, swa_indices, "set_full_to_swa_mapping")
    books.commit(allocator, lambda: books.ledger.pair(full_indices, swa_indices))
    books.history.end(allocator)


def _begin(allocator: Any, entry: str, last_loc: torch.Tensor | None = None, **told: Any) -> None:
    books_of(allocator).history.begin(allocator, entry, told, last_loc=last_loc)


def _extend_arguments(
    prefix_lens: Any, prefix_lens_cpu: Any, seq_lens: Any, seq_lens_cpu: Any, last_loc: Any, *args: Any, **kw: Any
) -> tuple[dict[str, list[int]], torch.Tensor]:
    """Return both lengths per request, from where the host has them, and the slot that each continues from."""
    return {"prefix_lens": _lens(prefix_lens_cpu), "seq_lens": _lens(seq_lens_cpu)}, last_loc


def _check_lengths(
    allocator: Any,
    entry: str,
    last_loc: torch.Tensor,
    prefix_lens: Any,
    prefix_lens_cpu: Any,
    seq_lens: Any,
    seq_lens_cpu: Any,
    *_args: Any,
    **_kw: Any,
) -> None:
    _check_copies(allocator, entry, last_loc, prefix_lens, prefix_lens_cpu)
    _check_copies(allocator, entry, last_loc, seq_lens, seq_lens_cpu)


def _check_copies(allocator: Any, entry: str, last_loc: torch.Tensor, lens: Any, on_host: Any) -> None:
    """Hold a batch's lengths against their copy on the host: by one pages are counted, by the other they are filled."""
    violation = check_copies(lens.to("cpu", torch.int64), on_host.to(torch.int64))
    if violation is not None:
        report_lengths(allocator, violation, lens, on_host, last_loc, entry)


def _lens(on_host: torch.Tensor) -> list[int]:
    return [int(length) for length in on_host.tolist()]


def _check_last_loc(allocator: Any, last_loc: torch.Tensor, minus_one_legal: torch.Tensor, entry: str) -> None:
    upper = uppers(allocator)[0]
    violation = check_slot_range(last_loc, allocator.page_size, upper, minus_one_legal.to(last_loc.device))
    if violation is not None:
        report_last_loc(allocator, violation, last_loc, entry)


def _hand_out(
    allocator: Any,
    entry: str,
    allocate: Callable[[], Any],
    swa_tail: int | None = None,
    goes_on: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> Any:
    books = books_of(allocator)
    assert books.lists is not None
    before = books.before = books.lists
    try:
        with books.call():
            full = allocate()
    except IndexError:
        _check_what_the_pools_gave(books, allocator, entry)
        raise
    books.history.end(allocator)
    if full is None:
        _check_nothing_taken(books, allocator, before, entry)
        books.commit(allocator)
        return full
    unmapped = 0 if swa_tail is None else full.numel() - swa_tail
    peers = allocator.full_to_swa_index_mapping[full.clamp(0, uppers(allocator)[0] - 1)]
    books.history.tell(full=full, swa=peers)
    taken = taken_off(before[0], free_page_lists(allocator.full_attn_allocator)[0])
    violation = check_hand_out(full, peers, books.ledger, *uppers(allocator), unmapped, taken)
    if violation is None and goes_on is not None and allocator.page_size > 1:
        violation = check_goes_on(full, *goes_on, allocator.page_size, uppers(allocator)[0])
    if violation is not None:
        _report(books, allocator, violation, full, peers, entry)
    books.commit(allocator, lambda: books.ledger.hand_out(full, peers))
    return full


def _check_what_the_pools_gave(books: Books, allocator: Any, entry: str) -> None:
    """Report a slot that the full pool does not have, of a hand-out whose mapping could not be written there."""
    full, swa = books.given.get("full"), books.given.get("swa")
    violation = None if full is None else check_slot_range(full, allocator.page_size, uppers(allocator)[0])
    if full is None or violation is None:
        return
    peers = swa if swa is not None and swa.shape == full.shape else torch.zeros_like(full)
    # Its pages have left the lists: for a replay of the dump the call is over.
    books.history.end(allocator)
    books.history.tell(full=full, swa=peers)
    _report(books, allocator, violation, full, peers, entry)


def _check_nothing_taken(books: Books, allocator: Any, before: tuple[torch.Tensor, ...], entry: str) -> None:
    after = allocator.full_attn_allocator, allocator.swa_attn_allocator
    counts = books.ledger.full_live.numel(), books.ledger.swa_owner.numel()
    for pool, inner in enumerate(after):
        lists = free_page_lists(inner)
        violation = check_failed_allocation(before[2 * pool : 2 * pool + 2], lists, counts[pool])
        if violation is not None:
            how = "taken from the free list by a call that then gave nothing"
            report_lost(allocator, violation, entry, SPACES[pool], how)


def _report(
    books: Books, allocator: Any, violation: Violation, full: torch.Tensor, peers: torch.Tensor, entry: str
) -> None:
    describe = partial(_summary, violation, books.ledger, allocator, full, peers, entry)
    report_slots(allocator, violation, full, peers, entry, describe)


def _summary(
    violation: Violation, ledger: SlotLedger, allocator: Any, full: torch.Tensor, peers: torch.Tensor, entry: str
) -> str:
    bad, page = violation.first, allocator.page_size
    space, here = SPACES[bad.column], bad.value // page
    given = f"{entry} gave {space} slot {bad.value}"
    if violation.verdict == "alloc_out_of_range":
        size = allocator.size_swa if bad.column else allocator.size_full
        return f"{given}, legal are {bad.lower} to {bad.upper - 1} (pool of {size} tokens, page size {page})"
    if violation.verdict == "alloc_overlap":
        if int(((peers if bad.column else full) == bad.value).sum()) > 1:
            return f"{given} twice in one call"
        if not bad.value % page and not bool((ledger.swa_owner if bad.column else ledger.full_live)[here]):
            return f"{given}, whose page {here} it did not take off the list"
        used = bool((ledger.swa_owner if bad.column else ledger.full_live)[here])
        return f"{given}, " + (
            f"and its page {here} is in use" if used else f"which continues page {here}, and that page is free"
        )
    leads = f"{entry}: full slot {int(full[bad.row])} maps to SWA slot {bad.value}"
    if violation.verdict == "stale_mapping":
        return f"{leads}, whose page {here} is free, or was somebody else's"
    return f"{leads}, and not to a slot of its own: page {here} serves full page {int(ledger.swa_owner[here])}"


def self_test() -> None:
    """Fire on one planted case of each verdict, stay silent on legal ones. Pages of 16 in pools of 4 and 4 pages.

    Raises:
        VerificationFailed: a check no longer tells them apart.
    """
    ledger = SlotLedger.create(4, 4, 16, "cpu")
    ends, two = (80, 80), torch.tensor([32, 33])
    ledger.hand_out(torch.tensor([16, 17]), torch.tensor([48, 49]))
    held, peers = torch.tensor([16, 17]), torch.tensor([48, 49])
    mapping = torch.zeros(80, dtype=torch.int64)
    mapping[17] = 49
    left, nothing = leftover_mappings(held[:1], peers[:1], mapping, 16), torch.zeros((0, 2), dtype=torch.int64)
    owners, pages = torch.tensor([0, 0, 1]), torch.arange(1, 5)
    found = {
        "clean last_loc": check_slot_range(torch.tensor([-1, 16]), 16, 80, torch.tensor([True, False])),
        "clean lengths": check_copies(two, two),
        "length_differs": check_copies(two, two + 1),
        "clean hand-out": check_hand_out(two, two, ledger, *ends),
        "clean free": check_free(held, peers, ledger, *ends),
        "clean group": check_repeats(held, 16, 80),
        "clean mapping": check_mapping_write(held, peers, ledger, nothing, *ends),
        "clean move": check_mapping_write(
            two, peers, ledger, entries_of_owners(two, peers, ledger, 0 * mapping), *ends
        ),
        "clean failure": check_failed_allocation((pages,), (pages,), 5),
        "alloc_out_of_range": check_hand_out(two, two + 48, ledger, *ends),
        "alloc_overlap": check_hand_out(torch.tensor([16]), torch.tensor([16]), ledger, *ends),
        "alloc_overlap of what was not taken": check_hand_out(two, two, ledger, *ends, 0, pages[2:]),
        "clean taken": check_hand_out(two, two, ledger, *ends, 0, pages[1:2]),
        "free_out_of_range": check_free(held - 16, peers, ledger, *ends),
        "double_free": check_free(two, torch.zeros_like(two), ledger, *ends),
        "stale_mapping": check_free(held, peers - 32, ledger, *ends),
        "pool_alias": check_mapping_write(two, peers, ledger, entries_of_owners(two, peers, ledger, mapping), *ends),
        "stale_mapping after free_swa": check_leftover_mappings(left, 16, 80),
        "double_free in a group": check_repeats(torch.tensor([16, 16]), 16, 80),
        "pool_leak": check_failed_allocation((pages,), (pages[1:],), 5),
        "pool_leak at restore": check_restored(owners, pages_in_use(torch.tensor([], dtype=torch.int64), 3)),
    }
    for case, violation in found.items():
        wanted = None if case.startswith("clean") else case.split()[0]
        if (violation.verdict if violation else None) != wanted:
            raise VerificationFailed(f"swa-allocator: self test: {case}: {violation}")
