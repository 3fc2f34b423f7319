"""What a finding is about, as far as its dumps say: which pages, which requests, and when that was looked at."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gemma4_dumps.audit_findings import TABLE
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Structure
from gemma4_triage.diagnose.census import FREE_AND_HELD, FREED_AGAIN, TWICE_FREE, lost_pages
from gemma4_triage.diagnose.evidence import cell, is_guard, resting_on, said, tensor_or_none
from gemma4_triage.diagnose.incident import LEAK, REQUEST_ROWS, Access, Incident, Place
from gemma4_triage.finding import Confidence, Evidence, Finding

_PAGES = {"page_table": "full", "swa_page_table": "swa"}
_SLOTS = {"out_cache_loc": "full", "swa_out_cache_loc": "swa", "rows": "full", "last_loc": "full"}
_POOLS = ("full", "swa")
_OTHER = {"full": "swa", "swa": "full"}
_HOLDER = re.compile(r"holders\[(\d+), \d+\]")
_OF_A_FREE = (FREE_AND_HELD, FREED_AGAIN, TWICE_FREE)


@dataclass(frozen=True)
class Subject:
    """What something is about.

    Attributes:
        pages: By pool. The null page is none: it stands for no page at all.
        requests: Request slots.
    """

    pages: frozenset[tuple[str, int]] = frozenset()
    requests: frozenset[int] = frozenset()


def is_of_same(one: Finding, other: Finding, incident: Incident) -> bool | None:
    """Return whether two findings are of the same page or request; None where they name nothing to compare."""
    here, there = subject_of(one, incident), subject_of(other, incident)
    if here.pages & there.pages or here.requests & there.requests:
        return True
    comparable = (here.pages and there.pages) or (here.requests and there.requests)
    return False if comparable else None


def subject_of(finding: Finding, incident: Incident) -> Subject:
    """Return the pages and requests that the dumps are about on which a finding rests, and whose holders it names."""
    pages: set[tuple[str, int]] = set()
    requests: set[int] = set()
    for source in resting_on([finding], incident):
        dump = incident.dump(source)
        if dump is not None:
            pages |= set(_pages_of(dump))
            requests |= set(_requests_of(dump))
    for piece in finding.evidence:
        named, dump = _HOLDER.fullmatch(piece.field), incident.dump(piece.source)
        table = None if named is None or dump is None else tensor_or_none(dump, "holders")
        if named is not None and table is not None:
            page, holder, leads_to = map(int, table[int(named[1])])
            pages |= {("full", page), ("swa", leads_to)}
            requests.add(holder)
    return Subject(
        frozenset(one for one in pages if one[1] > 0), frozenset(request for request in requests if request > 0)
    )


def said_again(found: Sequence[Finding], incident: Incident) -> Iterator[tuple[int, Evidence]]:
    """Yield what a later audit said again of pages that no dump of that verdict named before, and of which finding.

    An audit says nothing twice of a page: such a dump is no mere repetition. The number is that of the finding.
    """
    resting = [resting_on([finding], incident) for finding in found]
    of_each = [set(subject_of(finding, incident).pages) for finding in found]
    accounted = frozenset[str]().union(*resting)
    for dump in incident.of(rule=LEAK):
        if dump.manifest.dump_id in accounted:
            continue
        at = next((at for at, names in enumerate(resting) if incident.is_again(dump, names)), None)
        if at is None:
            continue
        table = [(one.pool, one.page) for one in lost_pages(dump)]
        row = next((row for row, one in enumerate(table) if one[0] in _POOLS and one not in of_each[at]), None)
        if row is not None:
            meaning = f"a page of which the audit of step {dump.manifest.step} says the same, and no dump before it"
            yield at, cell(dump, TABLE, (row, 0), meaning)
        of_each[at] |= set(table)


def said_elsewhere(found: Sequence[Finding], incident: Incident) -> Iterator[tuple[int, Evidence]]:
    """Yield the first dump that says the same as a finding's of other pages and requests, and how many do.

    Such a dump may be of a fault of its own. What an audit says again is told by `said_again`.
    """
    resting = [resting_on([finding], incident) for finding in found]
    accounted = frozenset[str]().union(*resting)
    others: dict[int, list[Dump]] = {}
    for dump in incident.by_access:
        if dump.manifest.rule == LEAK or dump.manifest.dump_id in accounted:
            continue
        at = next((at for at, names in enumerate(resting) if incident.is_again(dump, names)), None)
        if at is not None and _is_of_others(dump, subject_of(found[at], incident)):
            others.setdefault(at, []).append(dump)
    for at, dumps in others.items():
        count = f"{len(dumps)} dumps say" if len(dumps) > 1 else "one dump says"
        meaning = f"the same of other pages and requests, as {count}: it follows from this, or is a fault of its own"
        yield at, said(dumps[0], "offences.0.value", meaning)


def _is_of_others(dump: Dump, known: Subject) -> bool:
    pages, requests = frozenset(one for one in _pages_of(dump) if one[1] > 0), frozenset(_requests_of(dump))
    return bool(pages and known.pages and requests and known.requests) and not (
        pages & known.pages or requests & known.requests
    )


def seen(finding: Finding, incident: Incident) -> Place:
    """Return when the first thing was looked at that a finding rests on; what no dump shows comes before all dumps."""
    dumps = [incident.dump(piece.source) for piece in finding.evidence if not is_guard(piece)]
    places = [incident.places[dump.manifest.dump_id] for dump in dumps if dump is not None]
    return min(places, default=(0, Access.START, 0.0))


def began(finding: Finding, incident: Incident) -> Place:
    """Return when it was seen; of a free that is certainly the wrong one, when the ledger saw it.

    An audit finds a free long after it was made.
    """
    dumps = [incident.dump(source) for source in resting_on([finding], incident)]
    is_free = finding.structure is Structure.FREE_CALL and finding.confidence is Confidence.CERTAIN
    steps = [
        one.free_step
        for dump in dumps
        if is_free and dump is not None and dump.manifest.rule == LEAK
        for one in lost_pages(dump)
        if one.fault in _OF_A_FREE and one.pool in _POOLS and one.free_step is not None
    ]
    return min([seen(finding, incident), *((step, Access.ALLOCATOR, 0.0) for step in steps)])


def _pages_of(dump: Dump) -> Iterator[tuple[str, int]]:
    manifest, size = dump.manifest, dump.manifest.page_size or 1
    if manifest.rule == LEAK:
        for one in lost_pages(dump):
            if one.pool in _POOLS:
                yield one.pool, one.page
                if one.peer is not None:
                    yield _OTHER[one.pool], one.peer
        return
    for bad in manifest.offences:
        if bad.table in _PAGES:
            yield _PAGES[bad.table], bad.value
        elif bad.table in _SLOTS:
            yield _SLOTS[bad.table], bad.value // size
        elif bad.table == "slots" and bad.column in (0, 1):
            yield _POOLS[bad.column], bad.value // size
            yield from _pair(dump, bad.row, size)
        elif bad.table == "pages_lost":
            yield manifest.pool_kind or "full", bad.value


def _pair(dump: Dump, row: int, size: int) -> Iterator[tuple[str, int]]:
    """Yield the page of the full pool and the one that it has in the other, where a call names both."""
    slots = tensor_or_none(dump, "slots")
    if slots is not None and slots.ndim == 2 and slots.shape[1] == len(_POOLS) and 0 <= row < len(slots):
        yield from ((pool, int(slot) // size) for pool, slot in zip(_POOLS, slots[row], strict=True))


def _requests_of(dump: Dump) -> Iterator[int]:
    manifest = dump.manifest
    yield from (bad.request_slot for bad in manifest.offences if bad.request_slot is not None)
    slot = manifest.scalars.get("request_slot")
    if manifest.rule == REQUEST_ROWS and isinstance(slot, int):
        yield slot
    if manifest.rule == LEAK:
        for one in lost_pages(dump):
            if one.pool == "requests":
                yield one.page
            elif one.owner is not None:
                yield one.owner[0]
