"""What a ledger's events show of an SWA page that is lost: whether another was freed in its place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemma4_dumps.audit_findings import Suspect, suspects
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose.evidence import event, readable_events
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.finding import Evidence

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
        if not _is(asked, "free_asked", "full", lost.peer):
            continue
        flushed = next((at for at in range(number, len(events)) if _is(events[at], "freed", "full", lost.peer)), number)
        given = next((at for at in range(number, flushed) if _is(events[at], "handed_out", "swa")), None)
        page = None if given is None else _page(events[given])
        freed = next((at for at in range(flushed, len(events)) if _is(events[at], "freed", "swa", page)), None)
        if given is not None and freed is not None and page != lost.page:
            return (
                event(dump, number, _FIRST, "the full page that was handed in to be freed, the peer of the lost one"),
                event(dump, given, _FIRST, "the SWA page that was handed out meanwhile"),
                event(dump, freed, _FIRST, "the SWA page that the free released in its place"),
            )
    return ()


def _is(record: Mapping[str, Any], kind: str, pool: str, page: int | None = None) -> bool:
    fits = record.get("kind") == kind and record.get("pool") == pool
    return fits and (page is None or _page(record) == page)


def _page(record: Mapping[str, Any]) -> Any:
    pages = record.get("first_pages")
    return pages[0] if isinstance(pages, list) and pages else None
