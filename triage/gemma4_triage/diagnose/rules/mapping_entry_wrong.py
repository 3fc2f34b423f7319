"""The full-to-SWA mapping leads elsewhere than where the page's own SWA page is, which nobody has any more."""

from gemma4_dumps.audit_findings import TABLE
from gemma4_dumps.structures import Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import (
    FREE_AND_HELD,
    HELD_TWICE,
    NOWHERE,
    Census,
    Holder,
    Listed,
    exchanged,
    first_census,
    mapped_defect,
    single,
)
from gemma4_triage.diagnose.evidence import cell, readable_events, said
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.rule import FOLLOWS_FROM_AN_ENTRY, LEAVES_BUFFERS, LOSES_PAGES, Exclusion, Rule, Seen
from gemma4_triage.finding import Confidence, Finding

ID = "mapping-entry-wrong"
_LEADS_TO = 2
_GIVES_ANEW = ("handed_out", "free_asked", "freed")


def find(incident: Incident) -> Finding | None:
    """Return a finding where a full page is held, its SWA page is nowhere, and the mapping leads to another."""
    census = first_census(incident)
    if census is None or not census.holders:
        return None
    lost = _lost(census)
    if lost is None or lost.suspect.peer is None:
        return None
    held = [one for one in census.holders if one.page == lost.suspect.peer and one.leads_to != lost.page]
    if not held:
        return None
    return _finding(incident, census, lost, held[0])


def _finding(incident: Incident, census: Census, lost: Listed, held: Holder) -> Finding:
    dump = census.dumps[0]
    return Finding(
        rule=ID,
        structure=Structure.SWA_MAPPING,
        defect=mapped_defect(census, lost, held, lost.page),
        cause=(
            "The full-to-SWA mapping of a page that is in use leads elsewhere than to the SWA page that was handed out "
            "with it: nobody holds that one, and nobody freed it."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            cell(lost.dump, TABLE, (lost.row, 0), "the SWA page that nobody has"),
            cell(lost.dump, TABLE, (lost.row, 10), "the full page that it was handed out with, which is in use"),
            cell(dump, "holders", (held.row, _LEADS_TO), "where the mapping leads from there; 0: nowhere"),
            cell(lost.dump, TABLE, (lost.row, 4), "the request slot that owned it last"),
            said(lost.dump, "step", "the step of the audit that saw it first"),
            *(said(one, "verdict", "a later audit sees it too") for one in incident.of(verdict="mapping_differs")),
        ),
        advice=("Look at who writes the mapping: set_full_to_swa_mapping, free_swa, tombstone recovery.",),
        next_commands=(commands.audit(lost.dump), commands.serve(incident, "--debug trap")),
    )


def _lost(census: Census) -> Listed | None:
    return single(one for one in census.of("swa", NOWHERE) if one.was_taken and one.never_asked_back)


def _was_freed(seen: Seen) -> bool:
    """Return whether the full page is free as well as held, or another SWA page was freed with it."""
    if exchanged(seen.incident):
        return True
    census = first_census(seen.incident)
    lost = None if census is None else _lost(census)
    free = () if census is None else census.of("full", FREE_AND_HELD)
    return lost is not None and any(one.page == lost.suspect.peer for one in free)


def _was_given_anew(seen: Seen) -> bool | None:
    """Return whether the full page was given back or handed out since; None where the events do not reach so far.

    What was handed out with it before is then lost by that free, and the mapping leads to what came after.
    """
    census = first_census(seen.incident)
    lost = None if census is None else _lost(census)
    if lost is None or lost.suspect.alloc_step is None:
        return None
    calls = [one for one in readable_events(lost.dump) if one.get("pool") == "full" and one.get("kind") in _GIVES_ANEW]
    after = [one for one in calls if (one.get("step") or 0) > lost.suspect.alloc_step]
    if any(lost.suspect.peer in (one.get("first_pages") or ()) for one in after):
        return True
    # A call names its first pages alone.
    is_whole = all(len(one.get("first_pages") or ()) == one.get("pages") for one in after)
    return False if is_whole and len(after) < len(calls) else None


def _has_two_holders(seen: Seen) -> bool:
    """Return whether the full page is held twice: each of two hand-outs gave it an SWA page, and one of them is lost.

    A mapping that is written beside the allocator gives the full page itself to nobody else.
    """
    census = first_census(seen.incident)
    lost = None if census is None else _lost(census)
    twice = () if census is None else census.of("full", HELD_TWICE)
    return lost is not None and any(one.page == lost.suspect.peer for one in twice)


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("the full page was given back or handed out again since", _was_given_anew),
        Exclusion("another holds the full page too: then it was handed out twice", _has_two_holders),
        Exclusion("the full page has been freed: then the mapping was replaced before the free", _was_freed),
    ),
    explains=FOLLOWS_FROM_AN_ENTRY,
    leads_to=(*LEAVES_BUFFERS, *LOSES_PAGES),
    follows_calls=True,
)
