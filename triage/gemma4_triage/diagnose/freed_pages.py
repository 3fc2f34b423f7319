"""Pages that are free and held, or on no list: who freed them last, who holds them, what stands in their place."""

from __future__ import annotations

from collections.abc import Sequence

from gemma4_dumps.audit_findings import TABLE, Life, Suspect, suspects
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect
from gemma4_triage.diagnose.census import (
    FREE_AND_HELD,
    NOWHERE,
    OUT_OF_RANGE,
    TAKEN,
    TREE,
    TWICE_FREE,
    Census,
    Listed,
    invalid_defect,
)
from gemma4_triage.diagnose.evidence import cell, tensor_or_none
from gemma4_triage.finding import Evidence

_EVICTION = "evict_tree"


def peers_lost(census: Census, twice: set[int]) -> tuple[Evidence, ...]:
    """Return what says that the SWA pages of those pages are lost, if no others are: they went as those were mapped."""
    gone = census.of("swa", NOWHERE)
    if not gone or census.of("full", NOWHERE) or not all(one.suspect.peer in twice for one in gone):
        return ()
    return (cell(gone[0].dump, TABLE, (gone[0].row, 10), "the full page that a lost SWA page served"),)


def freed_from_cache(past: Sequence[Life]) -> Life | None:
    """Return the life before the latest, if the cache had the page and something else than its eviction freed it."""
    if len(past) < 2 or past[-2].given_step is None or past[-2].free_step is None:
        return None
    return None if past[-2].free_site == _EVICTION else past[-2]


def free_and_held(dump: Dump) -> list[Suspect]:
    """Return what the audit knows of the pages that are free and held; none if its table cannot be read."""
    try:
        return [page for page in suspects(dump) if page.fault == FREE_AND_HELD]
    except DumpError:
        return []


def was_freed(page: Suspect) -> bool:
    """Return whether the ledger saw a free of the page since it was handed out last.

    Of a free and a hand-out in one step the last event is the later one.
    """
    if page.free_step is None or page.alloc_step is None:
        return page.free_step is not None
    later = page.free_step == page.alloc_step and page.last_event not in TAKEN
    return later or page.free_step > page.alloc_step


def holder_has_ended(dump: Dump) -> bool | None:
    """Return whether no request that runs, nor the cache, holds such a page; None where the dump does not say."""
    table, running = tensor_or_none(dump, "holders"), dump.manifest.scalars.get("running")
    pages = {page.page for page in free_and_held(dump) if page.pool == "full"}
    if table is None or table.ndim != 2 or not isinstance(running, str):
        return None
    alive = {str(TREE), *running.split(",")}
    holders = [str(int(holder)) for page, holder, _ in table.tolist() if page in pages]
    return not alive & set(holders) if holders else None


def nothing_happened(census: Census) -> bool:
    """Return whether the ledger had seen no call of an allocator when the audit ran, and knows of all that there were.

    Nothing was handed out or given back then: what a list has is what it was made with, or was written into it.
    """
    scalars = census.dumps[0].manifest.scalars
    return scalars.get("events_seen") == 0 and not census.step


def strangers(census: Census, pool: str) -> list[Listed]:
    """Return what a free list has that does not belong there, and that nobody asked to give back."""
    listed = census.of(pool, OUT_OF_RANGE, TWICE_FREE, FREE_AND_HELD)
    return [one for one in listed if one.suspect.fault != FREE_AND_HELD or one.never_asked_back]


def stranger_defect(missing: Listed, strange: Listed, by_call: bool) -> Defect:
    """Return in which way an entry of a free list, or what a call made of it, is another page than the missing one."""
    if strange.suspect.fault == OUT_OF_RANGE:
        return invalid_defect(strange.page)
    if abs(strange.page - missing.page) == 1:
        return Defect.OFF_BY_ONE
    if by_call:
        return Defect.STALE
    return Defect.DUPLICATE if strange.suspect.fault == TWICE_FREE else Defect.FOREIGN
