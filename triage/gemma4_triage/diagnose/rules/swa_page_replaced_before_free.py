"""A free that looks the mapping up too late: it releases the SWA page that replaced the one it was asked to free."""

from collections.abc import Mapping
from typing import Any

from gemma4_dumps.audit_findings import TABLE, Suspect, suspects
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import cell, event, readable_events, said, tensor_or_none
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.rule import LOSES_PAGES, Exclusion, Rule, in_dump
from gemma4_triage.finding import Confidence, Evidence, Finding

ID = "swa-page-replaced-before-free"
_FIRST = "first_pages.0"


def find(incident: Incident) -> Finding | None:
    for dump in incident.of(rule=LEAK, verdict="pool_leak"):
        lost = _lost(dump)
        # A page that was free when it got lost was lost by the free list.
        if lost and all(_stayed_behind(suspect) and not _is_held(dump, suspect) for suspect in lost):
            break
    else:
        return None
    exchange = _exchange(dump, lost[0])
    return Finding(
        rule=ID,
        structure=Structure.SWA_MAPPING,
        defect=Defect.FOREIGN,
        cause=(
            "SWA pages are lost although their full pages were freed: the mapping led elsewhere by the time of the "
            "free, so the replacement was released and the page that was meant stayed behind."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(dump, "offence_count", "SWA pages that belong to nobody and are not free; no full page is lost"),
            cell(dump, TABLE, (0, 0), "the first of them"),
            said(dump, "scalars.swa_available", "SWA tokens that are free"),
            said(dump, "scalars.swa_total", "the SWA pool: the parts are less"),
            *exchange,
        ),
        advice=(
            "Look for what writes the mapping of slots that wait in an open free group: tombstone recovery, or "
            "set_full_to_swa_mapping between free_group_begin and free_group_end.",
            "The pool stays smaller until a flush_cache or a restart.",
        ),
        next_commands=(commands.audit(dump), commands.corpus("deferred-free-after-replacement")),
        upstream=("SGLang 36081",),
    )


def _is_held(dump: Dump, suspect: Suspect) -> bool:
    """Return whether somebody still holds the full page: then it was not freed, and another structure is wrong."""
    holders = tensor_or_none(dump, "holders")
    return holders is not None and holders.ndim == 2 and suspect.peer in holders[:, 0].tolist()


def _stayed_behind(suspect: Suspect) -> bool:
    return suspect.pool != "requests" and suspect.fault == "nowhere" and suspect.last_event not in ("cleared", "freed")


def _lost(dump: Dump) -> list[Suspect]:
    try:
        return suspects(dump)
    except DumpError:
        return []


def _exchange(dump: Dump, lost: Suspect) -> tuple[Evidence, ...]:
    """Return the events that show it: the full page asked back, another SWA page handed out, and that one freed.

    Without a peer nobody knows which full page that was, and any free would do.
    """
    if lost.peer is None:
        return ()
    events = readable_events(dump)
    for number, asked in enumerate(events):
        if not _is(asked, "free_asked", "full", lost.peer):
            continue
        given = next((at for at in range(number, len(events)) if _is(events[at], "handed_out", "swa")), None)
        page = None if given is None else _page(events[given])
        freed = next((at for at in range(number, len(events)) if _is(events[at], "freed", "swa", page)), None)
        if given is not None and freed is not None and freed > given and page != lost.page:
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


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "full pages of the same owner are lost too: then nothing was freed at all",
            in_dump(lambda dump: any(one.pool == "full" for one in _lost(dump))),
        ),
        Exclusion(
            "the events show no other SWA page that was handed out and freed in its place",
            in_dump(lambda dump: False if _exchange(dump, _lost(dump)[0]) else None),
        ),
    ),
    injected_by=("deferred-free-after-replacement",),
    leads_to=LOSES_PAGES,
)
