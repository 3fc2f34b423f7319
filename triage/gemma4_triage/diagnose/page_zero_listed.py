"""Page 0 on a free list, as an audit found it, and the free of no page that put it there."""

from collections.abc import Mapping, Sequence
from typing import Any

from gemma4_dumps.audit_findings import TABLE, suspects
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose.evidence import cell, event, readable_events, said
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.recorded_calls import slots_of
from gemma4_triage.finding import Evidence

_OF_A_FREE = {
    "by_request_slot": "the request that was released",
    "slots": "how many slots of page 0: a row that was never written has one, over and over",
}


def names_a_page(incident: Incident) -> bool:
    dump = incident.first(rule="swa-free-range", verdict="free_out_of_range")
    if dump is not None:
        return len({offence.value for offence in dump.manifest.offences}) > 1
    audit = _audit(incident)
    number = None if audit is None else _free_of_no_page(audit)
    return audit is not None and number is not None and "slots" in readable_events(audit)[number]


def at_audit(incident: Incident) -> tuple[tuple[Evidence, ...], bool]:
    """Return also whether other pages are listed beside page 0."""
    dump = _audit(incident)
    if dump is None:
        return (), False
    pages = _pages(dump)
    evidence = (
        cell(dump, TABLE, (pages.index(0), 0), "a page on the free list that the pool never hands out"),
        said(dump, "pool_kind", "of which pool"),
        said(dump, "step", "when the audit saw it"),
        said(dump, f"scalars.{dump.manifest.pool_kind}_available", "tokens free in that pool, with page 0's"),
        *_freed_by(dump),
    )
    return evidence, any(pages)


def _audit(incident: Incident) -> Dump | None:
    """Return the first audit that has page 0 on a free list."""
    return next((dump for dump in incident.of(rule=LEAK, verdict="free_out_of_range") if 0 in _pages(dump)), None)


def _freed_by(dump: Dump) -> tuple[Evidence, ...]:
    number = _free_of_no_page(dump)
    if number is None:
        return ()
    known = [name for name in ("by_request_slot", "slots") if readable_events(dump)[number].get(name) is not None]
    return (
        event(dump, number, "site", "the first free of no page of the pool"),
        event(dump, number, "step", "when that was"),
        *(event(dump, number, name, _OF_A_FREE[name]) for name in known),
    )


def _free_of_no_page(dump: Dump) -> int | None:
    """Return the first free whose slots are of no page of the pool, if it is among the events that the audit kept."""
    for number, record in enumerate(readable_events(dump)):
        freed = record.get("kind") in ("free_asked", "freed") and record.get("pool") == dump.manifest.pool_kind
        if freed and record.get("pages") == 0:
            return number
    return None


def _pages(dump: Dump) -> list[int]:
    try:
        listed = suspects(dump)
    except DumpError:
        return []
    # Request slot 0 is no page.
    return [suspect.page if suspect.pool in ("full", "swa") else -1 for suspect in listed]


_BEYOND = (
    " The call is that of a request which goes on, and gives back what has left its window ahead of an insert into the "
    "prefix cache: it reaches {more} tokens beyond the last slot that the request was given"
)
_INSERT_OR_FREE = (
    ". Either the insert is to take more of its text than has keys, or the window is given back by another length than "
    "the insert's, as by that of the whole prompt where a part of it was read."
)
_INSERT = ", so that the insert is to take more of its text than has keys: up to token {up_to}, where {read} were read."
_FREE = (
    ". The insert is to take no more than was read (up to token {up_to} of {read}): the window is given back by "
    "another length than that, as by the whole prompt's where a part of it was read."
)


def beyond_what_was_given(dump: Dump) -> str:
    """Return what is said of a free ahead of an insert that names unset entries behind the slots given last, or "".

    The dump is the allocator's, of the free that it refused.
    """
    records = readable_events(dump)
    runs = records[-1].get("full") if records else None
    if dump.manifest.scalars.get("call_site") != "cache_unfinished_req" or not isinstance(runs, list) or len(runs) < 2:
        return ""
    # Unset entries are one run of slot 0, over and over.
    unset, ends = runs[-1], slots_of(runs[-2:-1])[-1:]
    if not (isinstance(unset, list) and len(unset) == 3 and (unset[0], unset[2]) == (0, 0)):
        return ""
    read, up_to = _read(records, ends), _up_to(dump)
    if read is None:
        return ""
    how = _INSERT_OR_FREE if up_to is None else _FREE if up_to <= read else _INSERT
    return (_BEYOND + how).format(more=unset[1], up_to=up_to, read=read)


def ends_within_its_text(dump: Dump) -> bool:
    """Return whether the insert behind such a free is known to take no more than the request was given slots for."""
    records, up_to = readable_events(dump), _up_to(dump)
    runs = records[-1].get("full") if records else None
    read = _read(records, slots_of(runs[-2:-1])[-1:]) if isinstance(runs, list) else None
    return up_to is not None and read is not None and up_to <= read


def _read(records: Sequence[Mapping[str, Any]], ends: list[int]) -> int | None:
    """Return how long the request is that was given the slot `ends` last."""
    given = (one["seq_lens"] for one in records[:-1] if "seq_lens" in one and slots_of(one.get("full"))[-1:] == ends)
    return next((lengths[-1] for lengths in given if ends and lengths and isinstance(lengths[-1], int)), None)


def _up_to(dump: Dump) -> int | None:
    """Return up to which token the insert goes; dumps of before 0.5.23, and older ones, do not say."""
    up_to = dump.manifest.scalars.get("insert_up_to")
    return up_to if isinstance(up_to, int) else None
