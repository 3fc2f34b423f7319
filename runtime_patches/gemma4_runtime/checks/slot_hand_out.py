"""Check the slots that an allocator pair is about to give to requests, and the SWA slots that they map to."""

from __future__ import annotations

import torch

from gemma4_runtime.checks.slot_codes import coded, repeated, worst_violation
from gemma4_runtime.checks.slot_free import leftover_mappings
from gemma4_runtime.checks.slot_ledger import UNKNOWN, SlotLedger
from gemma4_runtime.checks.violation import MAX_LISTED, BadIndex, Violation

_VERDICTS = ("alloc_out_of_range", "alloc_overlap", "stale_mapping", "pool_alias")


def taken_off(before: torch.Tensor, after: torch.Tensor) -> torch.Tensor | None:
    """Return what a call took off a list of free pages, [any]; None where that is not the list's beginning.

    Looks at lengths and addresses alone: a call that only takes leaves a view of the same list.
    """
    count = before.numel() - after.numel()
    is_rest = count >= 0 and after.data_ptr() == before.data_ptr() + count * before.element_size()
    return before[:count] if is_rest and after.numel() and after.dtype is before.dtype else None


def _not_among(pages: torch.Tensor, taken: torch.Tensor | None) -> torch.Tensor:
    """Return bool [n]: pages [n] that are none of `taken` [any]; none of them where that is not known."""
    if taken is None or not taken.numel():
        return torch.full_like(pages, taken is not None, dtype=torch.bool)
    ascending = taken.to(pages.dtype).sort().values
    return ascending[torch.searchsorted(ascending, pages).clamp(max=taken.numel() - 1)] != pages


def check_hand_out(
    full: torch.Tensor,
    swa: torch.Tensor,
    ledger: SlotLedger,
    full_upper: int,
    swa_upper: int,
    unmapped: int = 0,
    taken: torch.Tensor | None = None,
) -> Violation | None:
    """Report slots outside their pool, slots that are in use, and pairs that do not belong together.

    A request's slots are consecutive in the call. A slot at a page's begin opens a page, which must have been free; any
    other slot continues a page: one that this call opened, or one that the request holds. Page size 1: all open one.

    | verdict            | full slot                           | SWA slot                                         |
    |--------------------|-------------------------------------|--------------------------------------------------|
    | alloc_out_of_range | outside [page, full_upper)          | outside [page, swa_upper)                        |
    | alloc_overlap      | given twice; opens a page in use;   | given twice; opens a page in use                 |
    |                    | continues a free one; opens a page  |                                                  |
    |                    | that the call did not take off      |                                                  |
    | stale_mapping      | -                                   | continues a free page; not 0 where there is none |
    | pool_alias         | -                                   | its page serves another full page; other offset  |

    Args:
        full: [n] full-pool slots.
        swa: [n] what they map to.
        ledger: the pages in use before this call.
        full_upper: size of the full pool in tokens + page size.
        swa_upper: likewise of the SWA pool.
        unmapped: the first so many entries have no SWA slot.
        taken: the pages that this call took off the full pool's list, [any]; None where that is not known.

    Returns:
        The violation (row: position, column: 0 full, 1 SWA) or None. One device synchronisation.
    """
    page = ledger.page_size
    position = torch.arange(full.numel(), device=full.device)
    offset = full % page
    first = position - offset
    opens = offset == 0
    # Does the slot at the begin of this page stand in this very call?
    new = (first >= 0) & (full[first.clamp(min=0)] == full - offset)
    live = ledger.full_live[(full // page).clamp(0, ledger.full_live.numel() - 1)]
    owner = ledger.owners(swa)
    mapped = position >= unmapped

    own = (owner == full // page) | (owner == UNKNOWN)
    apart = torch.where(new, swa != swa[first.clamp(min=0)] + offset, ~own) | ((swa - full) % page != 0)
    full_codes = coded(
        (full < page) | (full >= full_upper),
        repeated(full) | (opens & (live | _not_among(full // page, taken))) | ~(new | live),
    )
    swa_codes = coded(
        mapped & ((swa < page) | (swa >= swa_upper)),
        mapped & (repeated(swa) | (opens & (owner != 0))),
        torch.where(mapped, ~new & (owner == 0), swa != 0),
        mapped & apart,
    )
    legal = (range(page, full_upper), range(page, swa_upper))
    return worst_violation((full_codes, swa_codes), (full, swa), _VERDICTS, legal)


def entries_of_owners(full: torch.Tensor, swa: torch.Tensor, ledger: SlotLedger, mapping: torch.Tensor) -> torch.Tensor:
    """Return what the map still has for the full pages that had the SWA pages of `swa` [n] until now, for `full` [n].

    SGLang moves SWA pages: a prefix cache that has lost those of a node takes the ones of a request with the same
    prompt, clears the request's entries, and writes the node's. Whose SWA page is left in an entry has not moved.

    Returns:
        [m, 2] full and SWA slots, as `leftover_mappings`. Synchronises.
    """
    page = ledger.page_size
    owner = ledger.owners(swa)
    others = (owner > 0) & (owner != full // page)
    return leftover_mappings(owner * page, torch.where(others, swa, 0), mapping, page)


def check_mapping_write(
    full: torch.Tensor, swa: torch.Tensor, ledger: SlotLedger, left: torch.Tensor, full_upper: int, swa_upper: int
) -> Violation | None:
    """Report mapping entries that must not be written: full slot full[i] is to map to SWA slot swa[i], [n] each.

    alloc_out_of_range: outside a pool. stale_mapping: the SWA page is free. pool_alias: an SWA slot stands twice, or
    its page serves another full page by what `entries_of_owners` found, or the slots have different offsets in their
    pages.

    Returns: as `check_hand_out`. One device synchronisation.
    """
    page = ledger.page_size
    owner = ledger.owners(swa)
    own = (owner == full // page) | (owner == UNKNOWN) | ~torch.isin(swa // page, left[:, 1] // page)
    nothing = torch.zeros_like(own)
    full_codes = coded((full < page) | (full >= full_upper))
    swa_codes = coded(
        (swa < page) | (swa >= swa_upper),
        nothing,
        owner == 0,
        repeated(swa) | ~own | ((swa - full) % page != 0),
    )
    legal = (range(page, full_upper), range(page, swa_upper))
    return worst_violation((full_codes, swa_codes), (full, swa), _VERDICTS, legal)


def check_goes_on(
    full: torch.Tensor, last_loc: torch.Tensor, counts: torch.Tensor, page_size: int, upper: int
) -> Violation | None:
    """Report requests within a page whose first new slot is not the one behind their last.

    One synchronisation.

    Args:
        full: [n] full slots of the call, request by request.
        last_loc: [requests] the last slot of each, -1 for none.
        counts: [requests] how many of the slots are each one's, on the host.
        page_size: tokens of a page.
        upper: the first slot that the pool does not have.

    Returns:
        The violation (row: position in `full`, column 0, value: slot) or None.
    """
    if counts.numel() != last_loc.numel() or int(counts.sum()) != full.numel():
        return None
    firsts = (counts.cumsum(0) - counts)[counts > 0].to(full.device)
    last = last_loc[(counts > 0).to(last_loc.device)].to(torch.int64)
    given = full[firsts].to(torch.int64)
    bad = ((last >= 0) & ((last + 1) % page_size != 0) & (given != last + 1)).nonzero().flatten()
    if bad.numel() == 0:
        return None
    pairs = zip(firsts[bad].tolist(), given[bad].tolist(), strict=True)
    listed = tuple(BadIndex(row, 0, slot, page_size, upper) for row, slot in pairs)
    return Violation("alloc_overlap", listed[:MAX_LISTED], len(listed))
