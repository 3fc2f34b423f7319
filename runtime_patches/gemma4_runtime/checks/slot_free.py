"""Check the slots that an allocator pair is told to take back, before it does."""

from __future__ import annotations

import torch

from gemma4_runtime.checks.slot_codes import FULL, SWA, coded, repeated, worst_violation
from gemma4_runtime.checks.slot_ledger import UNKNOWN, SlotLedger
from gemma4_runtime.checks.violation import MAX_LISTED, BadIndex, Violation

_VERDICTS = ("free_out_of_range", "double_free", "stale_mapping", "pool_alias")


def check_free(
    full: torch.Tensor,
    swa: torch.Tensor,
    ledger: SlotLedger,
    full_upper: int,
    swa_upper: int,
    keeps_full: bool = False,
    of_segment: bool = False,
) -> Violation | None:
    """Report slots that the pools must not take back. An SWA slot of 0 means that none is to be freed: legal.

    But for a segment, of which the first slot of each page says which SWA page goes: that of 0 is page 0.

    | verdict           | full slot                       | SWA slot                                               |
    |-------------------|---------------------------------|--------------------------------------------------------|
    | free_out_of_range | outside [page, full_upper)      | in (0, page), which would free page 0; or >= swa_upper |
    | double_free       | in a free page, or stands twice | -                                                      |
    | stale_mapping     | -                               | its page is free                                       |
    | pool_alias        | -                               | its page serves another full page; other offset        |

    Two slots of one page in one call are legal: the page is freed once.

    Args:
        full: [n] full-pool slots.
        swa: [n] what they map to, 0 where the SWA slot was evicted.
        ledger: the pages in use before this call.
        full_upper: size of the full pool in tokens + page size.
        swa_upper: likewise of the SWA pool.
        keeps_full: only the SWA slots are freed. A full slot without one does nothing then, slot 0 included.
        of_segment: the slots follow each other in a row, from the first of a page on, and go by pages.

    Returns:
        The violation (row: position, column: 0 full, 1 SWA) or None. One device synchronisation.
    """
    page = ledger.page_size
    mapped = swa > 0
    live = ledger.full_live[(full // page).clamp(0, ledger.full_live.numel() - 1)]
    owner = ledger.swa_owner[(swa // page).clamp(0, ledger.swa_owner.numel() - 1)]
    own = (owner == full // page) | (owner == UNKNOWN)
    lower = 0 if keeps_full else page
    full_codes = coded(
        (full < lower) | (full >= full_upper),
        repeated(full) & mapped if keeps_full else repeated(full) | ~live,
    )
    swa_codes = coded(
        (mapped & ((swa < page) | (swa >= swa_upper))) | (_begins_a_page(swa, page) & ~mapped & of_segment),
        torch.zeros_like(mapped),
        mapped & (owner == 0),
        mapped & (~own | ((swa - full) % page != 0)),
    )
    legal = (range(lower, full_upper), range(page, swa_upper))
    return worst_violation((full_codes, swa_codes), (full, swa), _VERDICTS, legal)


def _begins_a_page(slots: torch.Tensor, page_size: int) -> torch.Tensor:
    """Return bool [n]: the first of each page-sized piece of slots [n]."""
    return torch.arange(slots.numel(), device=slots.device) % page_size == 0


def check_repeats(full: torch.Tensor, page_size: int, full_upper: int) -> Violation | None:
    """Report full slots [n] that stand twice, as in two calls of one free group. One device synchronisation."""
    return worst_violation(
        (coded(torch.zeros_like(full, dtype=torch.bool), repeated(full)),),
        (full,),
        _VERDICTS,
        (range(page_size, full_upper),),
    )


def leftover_mappings(full: torch.Tensor, swa: torch.Tensor, mapping: torch.Tensor, page_size: int) -> torch.Tensor:
    """Return the entries of `mapping` that still lead into an SWA page which was just released.

    Looks at all slots of the full pages that were named, nowhere else: O(pages * page_size). Synchronises.

    Args:
        full: [n] the slots that were named in the call.
        swa: [n] what they mapped to, 0 for nothing.
        mapping: [full slots] the full-to-SWA mapping after the call.
        page_size: slots of a page.

    Returns:
        [m, 2] full and SWA slots.
    """
    named = full[swa > 0]
    pages = torch.unique(named.to(torch.int64) // page_size)
    slots = (pages[:, None] * page_size + torch.arange(page_size, device=full.device)).flatten()
    peers = mapping[slots]
    stale = (peers > 0) & torch.isin(peers // page_size, torch.unique(swa[swa > 0] // page_size))
    return torch.stack((slots[stale], peers[stale]), dim=1)


def check_leftover_mappings(leftovers: torch.Tensor, page_size: int, swa_upper: int) -> Violation | None:
    """Report what `leftover_mappings` found, [m, 2], as stale. No further synchronisation if m is 0."""
    if leftovers.numel() == 0:
        return None
    listed = tuple(
        BadIndex(row, SWA, pair[SWA], page_size, swa_upper) for row, pair in enumerate(leftovers[:MAX_LISTED].tolist())
    )
    return Violation("stale_mapping", listed, leftovers.shape[FULL])
