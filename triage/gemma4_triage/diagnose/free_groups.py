"""Groups of frees in an audit's events: what their calls named, and what their end gave back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gemma4_dumps.audit_findings import TABLE
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import (
    FREED_AGAIN,
    NOWHERE,
    OUT_OF_RANGE,
    TWICE_FREE,
    Census,
    Listed,
    invalid_defect,
    is_event,
    single,
)
from gemma4_triage.diagnose.evidence import cell, event, readable_events
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.finding import Confidence, Evidence, Finding


@dataclass(frozen=True)
class Group:
    """What the calls of one group of frees named, and what its end gave back, as the ledger's events have it.

    Attributes:
        ended: The number of the event of its end, of the full pool.
        asked: The full pages that its calls named.
        freed: The full pages that its end gave back.
        freed_swa: How many SWA pages its end gave back.
    """

    ended: int
    asked: frozenset[int]
    freed: frozenset[int]
    freed_swa: int


def group_of(dump: Dump, page: int, since: int = 0) -> Group | None:
    """Return the first group of frees from a step on that was to give back a full page; None where none is known.

    A free outside of a group is followed by what it gave back, before another one asks; where events name fewer pages
    than they are of, nothing is known.
    """
    events = readable_events(dump)
    for number, one in enumerate(events):
        if not (is_event(one, "free_asked", "full") and one.get("step", -1) >= since and page in _named(one)):
            continue
        before = [at for at in range(number) if is_event(events[at], "freed", "full")]
        ended = next((at for at in range(number, len(events)) if is_event(events[at], "freed", "full")), None)
        if ended is None:
            return None
        within = events[before[-1] + 1 if before else 0 : ended + 1]
        asked = [record for record in within if is_event(record, "free_asked", "full")]
        # Calls of one group come in one step, as its end does; alone, one free is lost and another one is right.
        if len(asked) < 2 or len({record.get("step") for record in (*asked, events[ended])}) > 1:
            return None
        # A free outside of a group names who asks for it.
        if events[ended].get("site") not in (None, "unknown"):
            return None
        if any(len(_named(record)) != record.get("pages") for record in (*asked, events[ended])):
            return None
        freed_swa = sum(record.get("pages", 0) for record in within if is_event(record, "freed", "swa"))
        return Group(ended, frozenset().union(*map(_named, asked)), frozenset(_named(events[ended])), freed_swa)
    return None


def _named(record: Mapping[str, Any]) -> list[int]:
    pages = record.get("first_pages")
    return pages if isinstance(pages, list) else []


def lost_in_group(rule: str, incident: Incident, census: Census, lost: Listed) -> Finding | None:
    """Return a finding about a group whose calls named the page, and whose end gave back others or fewer."""
    group = group_of(lost.dump, lost.page, lost.suspect.free_step or 0)
    if group is None or lost.page in group.freed:
        return None
    instead = group.freed - group.asked
    invalid = single(census.of("full", OUT_OF_RANGE))
    twice = [one for one in census.of("full", TWICE_FREE, FREED_AGAIN) if one.page in group.asked | instead]
    if invalid is not None:
        defect = invalid_defect(invalid.page)
    elif len(instead) == 1:
        defect = Defect.OFF_BY_ONE if abs(min(instead) - lost.page) == 1 else Defect.FOREIGN
    else:
        defect = None if instead else Defect.DUPLICATE if twice else Defect.LOST
    cause = (
        f"A page was handed in to be freed by {lost.suspect.free_site} within a group of frees, and the group's end "
        f"did not give it back{', but another' if instead else ''}."
    )
    others = tuple(cell(one.dump, TABLE, (one.row, 0), "what was freed in its place") for one in twice[:1])
    # Where nothing stands in its place, the call itself may not have put it into the group.
    confidence = Confidence.CERTAIN if instead else Confidence.LIKELY
    return _of_group(rule, incident, lost, group, cause, defect, confidence, others)


def swa_side_lost_in_group(rule: str, incident: Incident, census: Census) -> Finding | None:
    """Return a finding where the end of a group gave back a full page, and fewer SWA pages than full ones."""
    lost = single(one for one in census.of("swa", NOWHERE) if one.suspect.peer and one.was_taken)
    if lost is None or census.of("full", NOWHERE):
        return None
    group = group_of(lost.dump, lost.suspect.peer or 0, lost.suspect.alloc_step or 0)
    if group is None or group.freed != group.asked or group.freed_swa != len(group.freed) - 1:
        return None
    cause = (
        "The end of a group of frees gave back a page of the full pool and not its SWA side, which is on no free list: "
        "the group had lost it, or the mapping led nowhere by then."
    )
    peer = (cell(lost.dump, TABLE, (lost.row, 10), "its full page, which the group gave back"),)
    return _of_group(rule, incident, lost, group, cause, Defect.LOST, Confidence.LIKELY, peer)


def _of_group(
    rule: str,
    incident: Incident,
    lost: Listed,
    group: Group,
    cause: str,
    defect: Defect | None,
    confidence: Confidence,
    more: tuple[Evidence, ...],
) -> Finding:
    gave = f"full pages that its end gave back, and {group.freed_swa} SWA pages; its calls named {len(group.asked)}"
    return Finding(
        rule=rule,
        structure=Structure.FREE_GROUP,
        defect=defect,
        cause=cause,
        confidence=confidence,
        evidence=(
            cell(lost.dump, TABLE, (lost.row, 0), "the page that nobody has"),
            cell(lost.dump, TABLE, (lost.row, 4), "the request slot that owned it last"),
            event(lost.dump, group.ended, "pages", gave),
            *more,
        ),
        advice=("Look at what writes the group's lists, and the mapping, between its first call and its end.",),
        next_commands=(commands.audit(lost.dump), commands.serve(incident, "--debug trap", "--probes swa-allocator")),
    )
