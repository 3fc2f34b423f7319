"""A request or the prefix cache holds page 0, or what is no page of the pool, and nothing else says why."""

from gemma4_dumps.audit_findings import TABLE
from gemma4_dumps.structures import Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import NOWHERE, TREE, Census, Listed, first_census, invalid_defect
from gemma4_triage.diagnose.evidence import cell, said
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.rule import LEAVES_BUFFERS, Exclusion, Rule
from gemma4_triage.diagnose.rules.holder_entry_wrong import HELD_OUT_OF_RANGE
from gemma4_triage.finding import Confidence, Finding

ID = "held-outside-pool"


def find(incident: Incident) -> Finding | None:
    """Return a finding where an audit saw such a page held."""
    dump = incident.first(rule=LEAK, verdict=HELD_OUT_OF_RANGE)
    if dump is None:
        return None
    census = first_census(incident)
    held = _held(census)
    holder = None if held is None or census is None else _holder(census, held.page)
    lost = census is not None and bool(census.of("full", NOWHERE))
    counted = holder not in (None, TREE) and not lost
    return Finding(
        rule=ID,
        structure=_structure(holder, lost),
        # Which of its counters is too large, and by how much, the page does not say.
        defect=None if counted or held is None else invalid_defect(held.page),
        cause=_cause(held, holder, lost),
        confidence=Confidence.CERTAIN if counted else Confidence.POSSIBLE,
        evidence=(
            said(dump, "summary", "what the audit found"),
            said(dump, "step", "the step of the audit that saw it first"),
            *(() if held is None else (cell(held.dump, TABLE, (held.row, 0), "the page that is held"),)),
        ),
        advice=(
            "Whoever reads that place reads the padding's keys, and who gives it back puts it on the free list.",
            "Compare the request's kv_allocated_len with how many slots its row was given.",
        ),
        next_commands=(commands.audit(dump), commands.serve(incident, "--debug trap")),
    )


def _held(census: Census | None) -> Listed | None:
    listed = () if census is None else census.of("full", "held_null", "held_outside")
    return listed[0] if listed else None


def _holder(census: Census, page: int) -> int | None:
    """Return who holds the page, if it is one alone."""
    holders = {one.holder for one in census.holders or () if one.page == page}
    return holders.pop() if len(holders) == 1 else None


def _structure(holder: int | None, lost: bool) -> Structure | None:
    if holder is None:
        return None
    if holder == TREE:
        return Structure.TREE_NODE
    return Structure.REQUEST_ROW if lost else Structure.REQUEST_COUNTERS


def _cause(held: Listed | None, holder: int | None, lost: bool) -> str:
    what = "an index that is no page of its pool" if held is None or held.page else "page 0, which is for padding,"
    if holder is None:
        return f"Somebody holds {what} as if it were a page."
    if holder == TREE:
        return f"A node of the prefix cache holds {what} as if it were a page of a prompt."
    if lost:
        return f"The row of request slot {holder} has {what} where a page of its own was."
    return (
        f"The request in slot {holder} counts {what} as its own, and no page is lost: it counts more tokens as "
        "allocated than its row was given."
    )


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("the request's row was written there since: then its counters are right, and the row is not"),
    ),
    leads_to=LEAVES_BUFFERS,
    fallback=True,
)
