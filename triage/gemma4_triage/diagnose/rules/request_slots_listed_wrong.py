"""The list of free request slots has what is no row of req_to_token for requests, or one row in another's place."""

from collections.abc import Iterator

from gemma4_dumps.audit_findings import TABLE
from gemma4_dumps.structures import Defect
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import (
    FREE_AND_HELD,
    NOWHERE,
    OUT_OF_RANGE,
    TWICE_FREE,
    Census,
    Listed,
    first_census,
    invalid_defect,
)
from gemma4_triage.diagnose.evidence import cell, said
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.rule import LOSES_PAGES, Exclusion, Rule
from gemma4_triage.finding import Confidence, Evidence, Finding

ID = "request-slots-listed-wrong"
_POOL, _HELD_NULL = "requests", "held_null"
_NO_ROW = (
    "The list of free request slots has {which}: the next request that gets it is given {row}. Either somebody gave "
    "back a slot that no request has, or the list was written."
)
_IN_ITS_PLACE = (
    "{count} of the list of free request slots {what}, and as many slots are nowhere: the list was written, or a call "
    "gave back other slots than it was to. One that is given back twice leaves none missing."
)
_HELD = (
    "A request runs in row 0 of req_to_token, which is for padding: the list of free request slots had it, or the "
    "request's own record of its slot was written."
)


def find(incident: Incident) -> Finding | None:
    """Return a finding where an audit saw a list of free request slots that was not made by taking and giving back."""
    census = first_census(incident)
    if census is None:
        return None
    strange, gone = _strange(census), census.of(_POOL, NOWHERE)
    if held := census.of(_POOL, _HELD_NULL):
        return _finding(incident, _HELD, Defect.ZERO, Confidence.POSSIBLE, (*_cells(held), *_missing(gone)))
    if not strange:
        return None
    outside = [one for one in strange if one.suspect.fault == OUT_OF_RANGE]
    # A place is one entry; a slot that stands on the list three times is in the place of two.
    surplus = len(outside) + sum(one.suspect.places - 1 for one in strange if one not in outside)
    defects = {invalid_defect(one.page) if one in outside else _defect(one) for one in strange}
    defect = defects.pop() if len(defects) == 1 else None
    evidence = (*_cells(strange), *_missing(gone))
    if gone and surplus == len(gone):
        cause = _IN_ITS_PLACE.format(
            count=f"{len(gone)} entries" if len(gone) > 1 else "One entry",
            what=f"should not be there ({', '.join(sorted({_what(one) for one in strange}))})",
        )
        return _finding(incident, cause, defect, Confidence.LIKELY, evidence)
    if not outside:
        return None
    first = outside[0].page
    padding = first == 0
    cause = _NO_ROW.format(
        which="slot 0, which is for padding" if padding else f"slot {first}, which req_to_token has not",
        row="the row that padded tokens write to" if padding else "a row that is not there",
    )
    return _finding(incident, cause, defect, Confidence.LIKELY, evidence)


def _strange(census: Census) -> tuple[Listed, ...]:
    return census.of(_POOL, OUT_OF_RANGE, TWICE_FREE, FREE_AND_HELD)


def _defect(one: Listed) -> Defect:
    return Defect.DUPLICATE if one.suspect.fault == TWICE_FREE else Defect.FOREIGN


def _what(one: Listed) -> str:
    if one.suspect.fault == OUT_OF_RANGE:
        return f"{one.page} is no row for requests"
    return f"{one.page} is of a request that runs" if one.suspect.fault == FREE_AND_HELD else f"{one.page} stands twice"


def _cells(listed: tuple[Listed, ...]) -> tuple[Evidence, ...]:
    return tuple(
        cell(one.dump, TABLE, (one.row, 0), "a request slot that is listed, or held, wrongly") for one in listed
    )


def _missing(gone: tuple[Listed, ...]) -> Iterator[Evidence]:
    for one in gone:
        yield cell(one.dump, TABLE, (one.row, 0), "a request slot that nobody has and that is not listed")


def _finding(
    incident: Incident, cause: str, defect: Defect | None, confidence: Confidence, evidence: tuple[Evidence, ...]
) -> Finding:
    census = first_census(incident)
    assert census is not None
    step = said(census.dumps[0], "step", "the step of the audit that saw it first")
    return Finding(
        rule=ID,
        defect=defect,
        cause=cause,
        confidence=confidence,
        evidence=(*evidence, step),
        advice=(
            "Look at who writes ReqToTokenPool.free_slots: alloc, free, and whatever resets or restores it.",
            "The ledger keeps no history of request slots: GEMMA4_TRIAGE_LEAK_EVERY=1 shows the step.",
        ),
        next_commands=(commands.audit(census.dumps[0]), commands.serve(incident, "--debug trap")),
    )


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("the request's own record of its slot was written, and it gave that slot back"),),
    explains=("page-freed-twice", "freed-while-held", "finished-requests-not-released", "free-list-entry-wrong"),
    leads_to=LOSES_PAGES,
)
