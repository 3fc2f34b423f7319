"""A batch goes by a row, a length or a write location that is not its request's."""

from gemma4_dumps.structures import Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import request_row_evidence
from gemma4_triage.diagnose.incident import REQUEST_ROWS, REQUEST_STATE, Incident
from gemma4_triage.diagnose.request_accounts import (
    NAMESPACE,
    are_independent,
    is_as_it_should,
    may_be_the_count,
    may_be_the_node,
    may_be_the_request,
    may_be_the_reserved_count,
    may_have_been_evicted,
    missed_pages,
)
from gemma4_triage.diagnose.request_state import told_of
from gemma4_triage.diagnose.rule import Exclusion, Rule, in_dump, open_of
from gemma4_triage.diagnose.written_by import where_to_look
from gemma4_triage.finding import Finding

ID = "request-state-differs"


def find(incident: Incident) -> Finding | None:
    """Return what the first such dump says; certain where it has both what stands there and what should."""
    dump = incident.first(rule=REQUEST_ROWS, verdict=REQUEST_STATE)
    if dump is None:
        return None
    told, why = told_of(dump), dump.manifest.scalars.get("why")
    return Finding(
        rule=ID,
        cause=told.cause,
        confidence=told.confidence,
        structure=told.structure,
        defect=told.defect,
        evidence=(*request_row_evidence(dump), *told.evidence, *missed_pages(incident)),
        advice=(where_to_look(None if why == NAMESPACE else told.structure, why),),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug 1")),
    )


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("the value is what the request's own row, tokens and prefix say", in_dump(is_as_it_should)),
        Exclusion("the two accounts that agree come from one source, which is wrong", in_dump(are_independent)),
        Exclusion("the cache counts its locked tokens wrongly, and no lock is missing", in_dump(may_be_the_count)),
        Exclusion("the request has the slots, and the count of them is too small", in_dump(may_be_the_reserved_count)),
        Exclusion(
            "the request's own record of its slot is wrong, or the order of the batch's requests",
            in_dump(may_be_the_request),
        ),
        Exclusion("the window was given back then, and is counted rightly", in_dump(may_have_been_evicted)),
        Exclusion("the request was to get another page, and its row was not written", open_of(Structure.FREE_CALL)),
        Exclusion("the nodes have that order too, and the row was read from them", in_dump(may_be_the_node)),
        Exclusion("the row is what changed, and the node is as it was", open_of(Structure.TREE_NODE)),
    ),
)
