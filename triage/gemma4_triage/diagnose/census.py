"""The first audit of an incident that found something, as one: its dumps are one for each verdict.

A page that is nowhere and another that is where it must not be are, of the same audit, one entry that was replaced.
What the ledger saw of the first says of which structure, and what the second is says in which way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gemma4_dumps.audit_findings import LIVES, TABLE, Suspect, lives, suspects
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect
from gemma4_triage.diagnose.evidence import cell, event, is_another_now, readable_events, tensor_or_none
from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.finding import Evidence

TREE = 0
"""The prefix cache among the holders of a page; others are request slots."""

NOWHERE, TWICE_FREE, FREE_AND_HELD, HELD_TWICE = "nowhere", "free_twice", "free_and_held", "held_twice"
OUT_OF_RANGE, LOCKED, FREED_AGAIN = "out_of_range", "locked_at_idle", "freed_again"
MAPPED_ELSEWHERE, STALE_MAPPING, MOVED_IN_TREE = "mapped_elsewhere", "stale_mapping", "moved_in_tree"
OF_VERIFIES = ("prepare_for_verify", "verify")
"""Sites that hand pages out inside a step."""
OF_DECODES = ("alloc_for_decode", "spec_v2_decode", *OF_VERIFIES)
"""Sites that hand pages out for a request's answer."""
_FREE = ("cleared", "freed")
GIVEN = "given"
"""The last event of a page that the prefix cache was given."""
TAKEN = ("handed_out", "owned", GIVEN)


_LAST_OWNER = re.compile(rf"(?:{TABLE}\[|offences\.)(\d+)(?:, 4\]|\.request_slot)")
"""What names the last owner of an audit's page as evidence, and in which row of the table."""


@dataclass(frozen=True)
class Listed:
    """A suspect, and where it stands: in row `row` of the table of `dump`."""

    dump: Dump
    row: int
    suspect: Suspect

    @property
    def page(self) -> int:
        """Its page."""
        return self.suspect.page

    @property
    def was_free(self) -> bool:
        """Return whether the page was free when anybody last did something with it, as the ledger saw it."""
        return self.suspect.last_event in _FREE

    @property
    def was_taken(self) -> bool:
        """Return whether it had an owner, and nobody had asked to free it."""
        return self.suspect.last_event in TAKEN

    @property
    def is_of_cache(self) -> bool:
        """Return whether the prefix cache was given the page, and that was the last of it."""
        return self.suspect.last_event == GIVEN

    @property
    def was_asked_back(self) -> bool:
        """Return whether somebody had asked to free it, and that was the last of it."""
        return self.suspect.last_event == "free_asked"

    @property
    def never_asked_back(self) -> bool:
        """Return whether the ledger saw nobody free it since it was handed out last, or at all.

        Of a free and a hand-out in one step the last event is the later one.
        """
        freed, given = self.suspect.free_step, self.suspect.alloc_step
        if freed is None or given is None or freed != given:
            return freed is None or (given is not None and freed < given)
        return self.was_taken


@dataclass(frozen=True)
class Holder:
    """One holder of a page.

    Attributes:
        row: Of the tensor `holders`.
        page: Of the full pool, or none of its pages.
        holder: TREE or a request slot.
        leads_to: The SWA page that the mapping has for it, 0 for none, -1 where nothing could be looked up.
    """

    row: int
    page: int
    holder: int
    leads_to: int


@dataclass(frozen=True)
class Census:
    """Everything that one audit found. dumps: of one step and process, oldest first."""

    dumps: tuple[Dump, ...]
    listed: tuple[Listed, ...]

    def of(self, pool: str, *faults: str) -> tuple[Listed, ...]:
        """Return the suspects of a pool with one of these faults."""
        return tuple(one for one in self.listed if one.suspect.pool == pool and one.suspect.fault in faults)

    @cached_property
    def holders(self) -> tuple[Holder, ...] | None:
        """Who holds the pages concerned; None where the dump does not say."""
        table = tensor_or_none(self.dumps[0], "holders")
        if table is None or table.ndim != 2 or table.shape[1] != 3:
            return None
        return tuple(Holder(row, *map(int, entry)) for row, entry in enumerate(table.tolist()))

    @property
    def caches_prefixes(self) -> bool:
        """Return whether the server has a prefix cache that keeps what it is given; True where the dump is silent."""
        return keeps_prefixes(self.dumps[0])

    @property
    def step(self) -> int:
        """The step of the audit."""
        return self.dumps[0].manifest.step or 0

    def slot_of(self, owner: tuple[int, int] | None) -> int | None:
        """Return the request slot of an owner; None if another request has that slot by now, or nobody is known."""
        return None if owner is None or is_another_now(self.dumps[0], owner) else owner[0]

    def pages(self, pool: str) -> int | None:
        """Return how many pages a pool has, its ids begin with 1; None where the dump does not say."""
        return self.dumps[0].manifest.extents.get(f"pages_{pool}_pool")

    def is_of_pool(self, page: int, pool: str) -> bool:
        """Return whether the pool has such a page; True where its size is not known."""
        pages = self.pages(pool)
        return page > 0 and (pages is None or page <= pages)

    def given_now(self, one: Listed, before: int = 0) -> bool:
        """Return whether it was handed out in the audit's step, or in so many before it.

        What is handed out before a step has the number before.
        """
        inside = one.suspect.alloc_site in OF_VERIFIES
        return one.suspect.alloc_step is not None and one.suspect.alloc_step >= self.step - before - (not inside)

    def given_instead(self, one: Listed, missing: Listed) -> bool:
        """Return whether a hand-out since the audit before may have given this for the missing one."""
        given, freed = one.suspect.alloc_step, missing.suspect.free_step
        every = Guards("", "guards.", self.dumps[0].manifest.guards).setting("leak_every")
        # At idle alone any may.
        if given is None or (freed is not None and freed > given):
            return False
        return every == 0 or self.given_now(one, every - 1 if isinstance(every, int) else 0)


def keeps_prefixes(dump: Dump) -> bool:
    """Return False where an audit says that what stands in the prefix cache's place keeps nothing."""
    return dump.manifest.scalars.get("caches_prefixes") is not False


def are_mapped_and_free(audit: Dump) -> bool:
    """Return whether all mapped pages that an audit names are full ones that were given back, or that nobody had."""
    listed = [one for one in lost_pages(audit) if one.fault == "stale_mapping"]
    return bool(listed) and all(one.pool == "full" and one.last_event in ("freed", "cleared") for one in listed)


def first_census(incident: Incident) -> Census | None:
    """Return the first audit that found something; None if there is none that can be read."""
    audits = list(incident.of(rule=LEAK))
    if not audits:
        return None
    first = min(audits, key=lambda dump: (dump.manifest.step or 0, dump.manifest.created_utc))
    dumps = tuple(dump for dump in audits if _audit_of(dump) == _audit_of(first))
    try:
        listed = tuple(Listed(dump, row, one) for dump in dumps for row, one in enumerate(suspects(dump)))
    except DumpError:
        return None
    return Census(dumps, listed)


def _audit_of(dump: Dump) -> tuple[object, ...]:
    host = dump.manifest.host
    return dump.manifest.step, dump.manifest.site, host.hostname, host.pid, host.rank


def owners_before(piece: Evidence, dump: Dump) -> Iterator[Evidence]:
    """Yield who had a page before the last owner that `piece` names, oldest first; nothing where it names none.

    The last owner may be innocent of what became of the page.
    """
    named = _LAST_OWNER.fullmatch(piece.field)
    table = tensor_or_none(dump, LIVES)
    if named is None or dump.manifest.rule != LEAK or table is None:
        return
    try:
        page, of_pages = suspects(dump)[int(named[1])], lives(dump)
    except (DumpError, IndexError):
        return
    pool = str(dump.manifest.scalars["pools"]).split(",").index(page.pool)
    rows = [row for row, entry in enumerate(table.tolist()) if entry[:2] == [page.page, pool]]
    before = of_pages.get((page.pool, page.page), [])[:-1]
    for row, life in zip(rows, before, strict=False):
        yield cell(dump, LIVES, (row, 2), f"an owner of page {page.page} before: {life.text()}")


def invalid_defect(page: int) -> Defect:
    """Return in which way an id is none of its pool's."""
    if page == 0:
        return Defect.ZERO
    return Defect.NEGATIVE if page < 0 else Defect.PAST_END


def shared_defect(lost: Listed, shared: Listed | None) -> Defect | None:
    """Return in which way a page that stands in another's place is wrong: of the same owner as that one, or not.

    None where the owner of one of them is not known.
    """
    if shared is None or shared.suspect.owner is None or lost.suspect.owner is None:
        return None
    return Defect.DUPLICATE if shared.suspect.owner == lost.suspect.owner else Defect.FOREIGN


def single(found: Iterable[Listed]) -> Listed | None:
    """Return the only one; None if there are more, or none."""
    listed = tuple(found)
    return listed[0] if len(listed) == 1 else None


def mapped_defect(census: Census, owned: Listed, held: Holder, own: int) -> Defect | None:
    """Return in which way the page that the mapping leads to is wrong where `own` belongs, whose owner `owned` has.

    An old entry leads to a page that is free by now; of one that nobody has found out of place no way is known.
    """
    to, pages = held.leads_to, census.pages("swa")
    if to <= 0:
        return Defect.NEGATIVE if to else Defect.ZERO
    if to == held.page:
        return Defect.OTHER_SPACE
    if pages is not None and to > pages:
        return Defect.PAST_END
    if abs(to - own) == 1:
        return Defect.OFF_BY_ONE
    shared = [one for one in census.of("swa", HELD_TWICE) if one.page == to]
    if shared:
        return shared_defect(owned, shared[0])
    is_free = any(one.page == to for one in census.of("swa", FREE_AND_HELD, TWICE_FREE))
    return Defect.STALE if is_free or held.page in {one.page for one in census.of("full", STALE_MAPPING)} else None


_FIRST = "first_pages.0"


def lost_pages(dump: Dump) -> list[Suspect]:
    """Return the entries of an audit that are out of place; none where the dump cannot be read."""
    try:
        return suspects(dump)
    except DumpError:
        return []


def exchanged(incident: Incident) -> bool:
    """Return whether an audit's events show that another SWA page was freed in the place of one that is lost."""
    audits = incident.of(rule=LEAK, verdict="pool_leak")
    return any(exchange_of(dump, lost) for dump in audits for lost in lost_pages(dump) if lost.pool == "swa")


def exchange_of(dump: Dump, lost: Suspect) -> tuple[Evidence, ...]:
    """Return the events that show it: the full page asked back, another SWA page handed out, and that one freed.

    It was handed out before the full page was freed, and freed with it: what later calls hand out is no exchange.
    Without a peer nobody knows which full page that was, and any free would do.
    """
    if lost.peer is None:
        return ()
    events = readable_events(dump)
    for number, asked in enumerate(events):
        if not is_event(asked, "free_asked", "full", lost.peer):
            continue
        flushed = next(
            (at for at in range(number, len(events)) if is_event(events[at], "freed", "full", lost.peer)), number
        )
        given = next((at for at in range(number, flushed) if is_event(events[at], "handed_out", "swa")), None)
        page = None if given is None else _page(events[given])
        freed = next((at for at in range(flushed, len(events)) if is_event(events[at], "freed", "swa", page)), None)
        if given is not None and freed is not None and page != lost.page:
            return (
                event(dump, number, _FIRST, "the full page that was handed in to be freed, the peer of the lost one"),
                event(dump, given, _FIRST, "the SWA page that was handed out meanwhile"),
                event(dump, freed, _FIRST, "the SWA page that the free released in its place"),
            )
    return ()


def is_event(record: Mapping[str, Any], kind: str, pool: str, page: int | None = None) -> bool:
    """Return whether an event is of this kind and pool, and begins with this page."""
    fits = record.get("kind") == kind and record.get("pool") == pool
    return fits and (page is None or _page(record) == page)


def _page(record: Mapping[str, Any]) -> Any:
    pages = record.get("first_pages")
    return pages[0] if isinstance(pages, list) and pages else None


def may_be_held(dump: Dump) -> bool | None:
    """Return False where the audit counted what sessions hold, which is nothing, and the server transfers no pages."""
    manifest = dump.manifest
    try:
        pools = {one.pool for one in suspects(dump) if one.fault == NOWHERE}
    except DumpError:
        return None
    counted = [manifest.scalars.get(f"{pool}_session_held") for pool in pools]
    transfers = any(argument.startswith("--disaggregation") for argument in manifest.launch_args)
    return False if counted and all(one == 0 for one in counted) and manifest.launch_args and not transfers else None
