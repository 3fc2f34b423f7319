"""A batch goes by a row, a length or a write location that is not its request's."""

from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import request_row_evidence
from gemma4_triage.diagnose.incident import REQUEST_ROWS, REQUEST_STATE, Incident
from gemma4_triage.diagnose.relation import is_off_by_a_slot, is_within_its_page, places_early, relation_of
from gemma4_triage.diagnose.request_accounts import (
    CHECKED,
    NAMESPACE,
    NONE,
    PREFIX,
    SHARED,
    are_independent,
    counter_of,
    is_as_it_should,
    is_known,
    is_left_behind,
    is_reordered,
    may_be_another,
    may_be_the_count,
    may_be_the_node,
    may_be_the_request,
    may_be_the_reserved_count,
    may_have_been_evicted,
    missed_pages,
    of_its_slot,
    sentence_of,
    slots_given_again,
)
from gemma4_triage.diagnose.row_evidence import told_by
from gemma4_triage.diagnose.rule import Exclusion, Rule, in_dump, open_of
from gemma4_triage.diagnose.written_by import where_to_look
from gemma4_triage.finding import Confidence, Finding

ID = "request-state-differs"
_IN_ITS_PAGE = "it is another slot of the very page that belongs there"


def find(incident: Incident) -> Finding | None:
    """Return what the first such dump says; certain where it has both what stands there and what should."""
    dump = incident.first(rule=REQUEST_ROWS, verdict=REQUEST_STATE)
    if dump is None:
        return None
    scalars = dump.manifest.scalars
    structure = next((word for word in Structure if word == scalars.get("structure")), None)
    why, slot, expected, had = (scalars.get(name) for name in ("why", "request_slot", "expected", "row_had"))
    # A row that is as it was is not what changed: its page went to somebody else.
    elsewhere = scalars.get("as_before") is True
    of_tree = why == PREFIX and elsewhere
    # A row that nobody has looked at before was written from the nodes a moment ago.
    is_new = why == PREFIX and scalars.get("first_look") is True
    of_row = is_new or (why == PREFIX and isinstance(had, int) and had == expected)
    unsure = elsewhere or (why == PREFIX and not of_row)
    # Dumps without `row_had` have the way in which the row would be wrong.
    way_is_told = not unsure or (of_tree and had is not None)
    defect = next((word for word in Defect if way_is_told and word == scalars.get("defect")), None)
    its_own = elsewhere or scalars.get("page_was_own") is True
    given_back = its_own and why != PREFIX and scalars.get("page_event") in ("free_asked", "freed")
    by = scalars.get("by_request_slot")
    by_other = given_back and by is not None and by != slot
    if given_back:
        unsure, structure, defect = False, Structure.FREE_CALL, Defect.FOREIGN if by_other else Defect.EARLY
    if elsewhere or given_back:
        became = "given back" if given_back else "given back, or handed out again"
        became += f" with those of the request in slot {by}" if by_other else ""
        kept = "its row is as it was" if elsewhere else "its row has it still, and it has no other for that place"
        cause = f"A page of the running request in slot {slot} was {became}, by the ledger; {kept}."
    else:
        named = "an entry" if structure is None else f"the {structure.value}{counter_of(dump)}"
        should = f" where {expected} belongs" if is_known(dump) else ""
        again = slots_given_again(dump)
        # What is handed out and nobody's is not another request's.
        off_by_one = abs(places_early(dump) or 0) == 1 or (defect is not Defect.SWAPPED and is_off_by_a_slot(dump))
        defect = None if again is not None else Defect.OFF_BY_ONE if off_by_one else defect
        way = "" if defect is None else f" ({defect.value})"
        value, owner = scalars.get("value"), scalars.get("page_owner")
        of = "" if owner in (None, slot) else f", of a page of the request in slot {owner}"
        relation = again or relation_of(dump) or (_IN_ITS_PAGE if is_within_its_page(dump) else None)
        came = "" if relation is None else f"; {relation}"
        cause = f"The request in slot {slot} has a wrong value in {named}: {value}{of}{should}{way}{came}."
    if why == SHARED and scalars.get("owners") != CHECKED:
        unsure, structure, defect = True, None, None
        cause = (
            f"The rows of two running requests, one of them in slot {slot}, name the page of {scalars.get('value')}: "
            "whose it is was not looked at."
        )
    cause = sentence_of(dump) or cause
    if (moved := of_its_slot(dump)) is not None:
        structure, cause, way = moved
        unsure, defect = structure is None, way or (defect if structure and defect is Defect.SWAPPED else None)
    if scalars.get("account") == NONE:
        unsure, structure, defect = True, None, None
        cause = f"Batch, count and tokens of the request in slot {slot} give three lengths: which is wrong is unknown."
    if is_left_behind(dump):
        unsure, of_tree, structure, defect = False, False, Structure.REQUEST_ROW, Defect.STALE
        cause = (
            f"The row of the request in slot {slot} has a page that the prefix cache was never given: the nodes that "
            "the request holds have another for these tokens, and the row was not written with it."
        )
    elif is_reordered(dump):
        structure, defect = Structure.REQUEST_ROW, Defect.SWAPPED
        cause = (
            f"The prefix cache wrote the row of the request in slot {slot} again, with its own pages in another order: "
            f"{scalars.get('value')} where {expected} belongs."
        )
    elif why == PREFIX and not of_row:
        which = "the row is as it was, the node is not" if of_tree else "which of them is wrong is not known"
        cause = f"The row of the request in slot {slot} and the cache's nodes that it holds have other slots: {which}."
    if (more := told_by(dump)) is not None:
        unsure, of_tree, structure = False, False, more.structure
        cause, defect = more.cause, more.defect
    told = moved is not None or is_new or may_be_another(dump) if more is None else not more.sure
    sure = Confidence.LIKELY if told or "or another request's slots" in cause else Confidence.CERTAIN
    blamed = Structure.TREE_NODE if of_tree else None if unsure else structure
    return Finding(
        rule=ID,
        cause=cause,
        confidence=Confidence.POSSIBLE if unsure and not of_tree else sure,
        structure=blamed,
        defect=defect,
        evidence=(*request_row_evidence(dump), *(more.evidence if more else ()), *missed_pages(incident)),
        advice=(where_to_look(None if why == NAMESPACE else blamed, why),),
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
