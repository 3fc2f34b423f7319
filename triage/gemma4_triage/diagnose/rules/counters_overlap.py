"""A request counts pages of the prefix cache among its own: what it says of its protected part is too little."""

from gemma4_dumps.audit_findings import TABLE
from gemma4_dumps.structures import Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import HELD_TWICE, TREE, Census, Listed, first_census
from gemma4_triage.diagnose.evidence import cell, said
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.rule import LOSES_PAGES, Exclusion, Rule, Seen
from gemma4_triage.finding import Confidence, Finding

ID = "counters-overlap"


def find(incident: Incident) -> Finding | None:
    """Return a finding where all that an audit found are pages that the cache and one request both have."""
    census = first_census(incident)
    if census is None or not census.holders:
        return None
    shared = census.of("full", HELD_TWICE)
    slots = {_request_of(census, one) for one in shared}
    if not shared or len(slots) != 1 or None in slots:
        return None
    first = shared[0]
    row = next(one.row for one in census.holders if one.page == first.page and one.holder != TREE)
    return Finding(
        rule=ID,
        structure=Structure.REQUEST_COUNTERS,
        cause=(
            "A request counts pages as its own that the prefix cache has taken over: its cache_protected_len is too "
            "small, and it will free what the cache still holds."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            said(first.dump, "offence_count", "pages that both have"),
            cell(first.dump, TABLE, (first.row, 0), "the first of them"),
            cell(census.dumps[0], "holders", (row, 1), "the request slot that has it beside the cache"),
            cell(first.dump, TABLE, (first.row, 4), "its owner by the ledger: the same request slot"),
        ),
        advice=("Compare cache_protected_len with the node that the request holds: cache_unfinished_req sets both.",),
        next_commands=(commands.audit(first.dump), commands.serve(incident, "--debug trap")),
    )


def _request_of(census: Census, one: Listed) -> int | None:
    """Return the request slot that has the page beside the cache, if it is the ledger's owner too."""
    found = sorted(holder.holder for holder in census.holders or () if holder.page == one.page)
    owner = census.slot_of(one.suspect.owner)
    return owner if owner is not None and found == [TREE, owner] else None


def _others_are_wrong(seen: Seen) -> bool:
    census = first_census(seen.incident)
    listed = () if census is None else census.listed
    return any(one.suspect.pool == "full" and one.suspect.fault != HELD_TWICE for one in listed)


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("another page of the full pool is out of place: then an entry was replaced", _others_are_wrong),
        Exclusion("a node was made of pages that the request, which still runs, was given for itself"),
    ),
    explains=("swa-page-shared", "freed-while-held", "page-freed-twice", "page-given-twice", "mapping-outlives-page"),
    leads_to=LOSES_PAGES,
)
