"""A page was handed in to be freed and never got onto the free list: lost inside the free."""

from gemma4_dumps.audit_findings import TABLE
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import (
    FREE_AND_HELD,
    FREED_AGAIN,
    NOWHERE,
    OUT_OF_RANGE,
    TWICE_FREE,
    Listed,
    first_census,
    invalid_defect,
    single,
)
from gemma4_triage.diagnose.evidence import cell
from gemma4_triage.diagnose.free_groups import lost_in_group, swa_side_lost_in_group
from gemma4_triage.diagnose.incident import LOST_PAGES, Incident
from gemma4_triage.diagnose.rule import FOLLOWS_FROM_AN_ENTRY, LOSES_PAGES, Exclusion, Rule, calls_went_unseen
from gemma4_triage.finding import Confidence, Finding

ID = "free-that-loses"


def find(incident: Incident) -> Finding | None:
    """Return a finding where the ledger saw a page asked back, no release of it, and the audit has it nowhere."""
    census = first_census(incident)
    if census is None:
        return None
    lost = [one for one in census.of("full", NOWHERE) if one.was_asked_back]
    if not lost:
        return swa_side_lost_in_group(ID, incident, census)
    first = lost[0]
    if (in_group := lost_in_group(ID, incident, census, first)) is not None:
        return in_group
    other = single(
        one
        for one in census.of("full", OUT_OF_RANGE, TWICE_FREE, FREED_AGAIN, FREE_AND_HELD)
        if _in_its_place(one, first)
    )
    unseen = calls_went_unseen(first.dump)
    instead = () if other is None else (cell(other.dump, TABLE, (other.row, 0), "what was freed in its place"),)
    return Finding(
        rule=ID,
        structure=None if unseen else Structure.FREE_CALL,
        defect=Defect.LOST if other is None else _defect(first, other),
        cause=(
            f"A page was handed in to be freed by {first.suspect.free_site} and is on no free list: "
            + (
                "another was freed in its place."
                if instead
                else "it was lost inside the free, and not kept by its owner."
            )
        ),
        # Both ends are in the ledger: the call that asked, and no release. A group of frees may have been between them.
        confidence=Confidence.POSSIBLE if unseen else Confidence.CERTAIN,
        evidence=(
            cell(first.dump, TABLE, (first.row, 0), "the page that nobody has"),
            cell(first.dump, TABLE, (first.row, 9), f"the step at which {first.suspect.free_site} asked to free it"),
            cell(first.dump, TABLE, (first.row, 11), "its last event: asked to be freed, and never freed"),
            cell(first.dump, TABLE, (first.row, 4), "the request slot that owned it last"),
            *instead,
        ),
        advice=("Look at what is between the caller's free and free_pages: a filter, a free group, a cut list.",),
        next_commands=(commands.audit(first.dump), commands.serve(incident, "--debug trap", "--probes swa-allocator")),
    )


def _in_its_place(one: Listed, lost: Listed) -> bool:
    """Return whether it was freed when the lost page should have been, or has come onto the list from nowhere."""
    return one.suspect.fault == OUT_OF_RANGE or one.suspect.free_step == lost.suspect.free_step


def _defect(lost: Listed, other: Listed) -> Defect:
    if other.suspect.fault == OUT_OF_RANGE:
        return invalid_defect(other.page)
    return Defect.OFF_BY_ONE if abs(other.page - lost.page) == 1 else Defect.EARLY


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion(
            "an allocator's dump says which call lost pages",
            lambda seen: seen.incident.first(rule=LOST_PAGES) is not None,
        ),
    ),
    explains=FOLLOWS_FROM_AN_ENTRY,
    leads_to=LOSES_PAGES,
    follows_calls=True,
)
