"""A request counts SWA tokens as evicted that nobody freed: its swa_evicted_seqlen is too large."""

from gemma4_dumps.audit_findings import TABLE
from gemma4_dumps.structures import Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import NOWHERE, TREE, Census, Listed, first_census
from gemma4_triage.diagnose.evidence import cell, said
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.rule import LOSES_PAGES, Exclusion, Rule, Seen
from gemma4_triage.finding import Confidence, Finding

ID = "evicted-not-freed"


def find(incident: Incident) -> Finding | None:
    """Return a finding where the mapping leads one request's pages to SWA pages that it does not count any more."""
    census = first_census(incident)
    if census is None or not census.holders:
        return None
    lost = census.of("swa", NOWHERE)
    slots = {_request_of(census, one) for one in lost}
    if not lost or len(slots) != 1 or None in slots or census.of("full", NOWHERE):
        return None
    first = lost[0]
    row = next(one.row for one in census.holders if one.leads_to == first.page)
    return Finding(
        rule=ID,
        structure=Structure.REQUEST_COUNTERS,
        cause=(
            "A request counts SWA tokens as evicted from its window that nobody freed: its swa_evicted_seqlen is too "
            "large, and their pages will never be given back."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(first.dump, "offence_count", "SWA pages that nobody counts as held"),
            cell(first.dump, TABLE, (first.row, 0), "the first of them"),
            cell(census.dumps[0], "holders", (row, 2), "where the mapping leads from the request's page: there"),
            cell(first.dump, TABLE, (first.row, 4), "the request slot that owns it, which still runs"),
        ),
        advice=(
            "Compare swa_evicted_seqlen with what free_swa was given: _evict_swa sets the one and calls the other.",
        ),
        next_commands=(commands.audit(first.dump), commands.serve(incident, "--debug trap")),
    )


def _request_of(census: Census, one: Listed) -> int | None:
    """Return the request slot whose page leads to this SWA page, if it is the ledger's owner."""
    if not one.was_taken or one.suspect.owner is None:
        return None
    led = [holder for holder in census.holders or () if holder.leads_to == one.page]
    same = all(holder.holder == one.suspect.owner[0] and holder.page == one.suspect.peer for holder in led)
    return one.suspect.owner[0] if led and same and one.suspect.owner[0] != TREE else None


def _was_freed(seen: Seen) -> bool:
    census = first_census(seen.incident)
    return census is not None and not all(one.never_asked_back for one in census.of("swa", NOWHERE))


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("the ledger saw a free of these pages since they were handed out", _was_freed),
        Exclusion("the pages were evicted, and their free was left out"),
    ),
    explains=("mapping-outlives-page", "swa-page-replaced-before-free", "pages-leaked", "evicted-page-counted"),
    leads_to=LOSES_PAGES,
)
