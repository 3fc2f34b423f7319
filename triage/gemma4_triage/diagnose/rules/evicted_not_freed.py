"""A request counts SWA tokens as evicted that nobody freed: its count is too large, or the eviction freed nothing."""

from gemma4_dumps.audit_findings import TABLE
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import NOWHERE, TREE, Census, Listed, first_census, single
from gemma4_triage.diagnose.evidence import cell, count_of, event, readable_events, said
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.rule import LOSES_PAGES, Exclusion, Rule, Seen
from gemma4_triage.finding import Confidence, Evidence, Finding

ID = "evicted-not-freed"
_COUNT = (
    "A request counts SWA tokens as evicted from its window that nobody freed: its swa_evicted_seqlen is too large, "
    "and their pages will never be given back."
)
_EVICTION = (
    "Pages have left a request's sliding window, the request counts them as evicted, and nobody freed them: their "
    "eviction was left out, and they will never be given back."
)
_ANOTHER = (
    "Pages have left a request's sliding window, and nobody freed them: their eviction gave back another's page in the "
    "place of one."
)


def find(incident: Incident) -> Finding | None:
    """Return a finding where the mapping leads one request's pages to SWA pages that it does not count any more."""
    census = first_census(incident)
    if census is None or not census.holders:
        return None
    lost = census.of("swa", NOWHERE)
    slots = {_request_of(census, one) for one in lost}
    if not lost or len(slots) != 1 or None in slots or census.of("full", NOWHERE):
        return None
    first, due = lost[0], _had_left(census, lost[0])
    instead = _evicted_instead(census, first) if due else None
    row = next(one.row for one in census.holders if one.leads_to == first.page)
    return Finding(
        rule=ID,
        structure=Structure.WINDOW_EVICTION if due else Structure.REQUEST_COUNTERS,
        defect=None if not due else Defect.LOST if instead is None else instead[0],
        cause=_COUNT if not due else _EVICTION if instead is None else _ANOTHER,
        confidence=Confidence.CERTAIN,
        evidence=(
            said(first.dump, "offence_count", "SWA pages that nobody counts as held"),
            cell(first.dump, TABLE, (first.row, 0), "the first of them"),
            cell(census.dumps[0], "holders", (row, 2), "where the mapping leads from the request's page: there"),
            cell(first.dump, TABLE, (first.row, 4), "the request slot that owns it, which still runs"),
            *(() if instead is None else (instead[1],)),
            *(() if due is None else _held_against(first)),
        ),
        advice=(
            "Compare swa_evicted_seqlen with what free_swa was given: _evict_swa sets the one and calls the other.",
        ),
        next_commands=(commands.audit(first.dump), commands.serve(incident, "--debug trap")),
    )


def _request_of(census: Census, one: Listed) -> int | None:
    """Return the request slot whose page leads to this SWA page, if it is the ledger's owner."""
    owner = census.slot_of(one.suspect.owner)
    if not one.was_taken or owner is None:
        return None
    led = [holder for holder in census.holders or () if holder.leads_to == one.page]
    same = all(holder.holder == owner and holder.page == one.suspect.peer for holder in led)
    return owner if led and same and owner != TREE else None


def _held_against(first: Listed) -> tuple[Evidence, ...]:
    return (
        said(first.dump, "scalars.evicted", "tokens that each request counts as evicted, by slot"),
        said(first.dump, "scalars.left_window", "tokens that no later token sees through the window, by slot"),
    )


def _evicted_instead(census: Census, lost: Listed) -> tuple[Defect, Evidence] | None:
    """Return how the page differs that the eviction gave back in the lost one's place, and the event that shows it."""
    unmapped = single(census.of("full", "unmapped"))
    if unmapped is None or lost.suspect.peer is None or unmapped.suspect.owner == lost.suspect.owner:
        return None
    for number, record in enumerate(readable_events(census.dumps[0])):
        evicted = record.get("pool") == "swa" and record.get("site") == "evict_swa"
        if evicted and unmapped.suspect.peer in (record.get("first_pages") or ()):
            beside = abs(unmapped.page - lost.suspect.peer) == 1
            seen = event(census.dumps[0], number, "step", "when an eviction gave back the SWA page of another")
            return Defect.OFF_BY_ONE if beside else Defect.FOREIGN, seen
    return None


def _had_left(census: Census, one: Listed) -> bool | None:
    """Return whether all that the page's owner counts as evicted has left its window; None where nobody says that."""
    dump, slot = census.dumps[0], census.slot_of(one.suspect.owner)
    evicted, left = (count_of(dump, name, slot) for name in ("evicted", "left_window"))
    return None if evicted is None or left is None else evicted <= left


def _is_of_the_other(seen: Seen) -> bool | None:
    """Return False where the count reaches into the window: no eviction takes that."""
    census = first_census(seen.incident)
    lost = () if census is None else census.of("swa", NOWHERE)
    return False if census is not None and lost and _had_left(census, lost[0]) is False else None


def _was_freed(seen: Seen) -> bool:
    census = first_census(seen.incident)
    return census is not None and not all(one.never_asked_back for one in census.of("swa", NOWHERE))


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("the ledger saw a free of these pages since they were handed out", _was_freed),
        Exclusion(
            "it is the other of the two: a count that was moved, or an eviction whose free was left out",
            _is_of_the_other,
        ),
    ),
    explains=("mapping-outlives-page", "swa-page-replaced-before-free", "pages-leaked", "evicted-page-counted"),
    leads_to=LOSES_PAGES,
)
