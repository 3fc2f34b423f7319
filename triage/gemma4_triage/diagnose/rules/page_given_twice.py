"""An allocator hands out a page that somebody still owns, or that it did not take off its list."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose.census import FREE_AND_HELD, first_census
from gemma4_triage.diagnose.cut_lists import of_lists
from gemma4_triage.diagnose.earlier_calls import asked_elsewhere, freed_before
from gemma4_triage.diagnose.evidence import cell, tensor_or_none
from gemma4_triage.diagnose.freed_pages import of_hand_out
from gemma4_triage.diagnose.hand_out import (
    goes_past_its_page,
    hand_out_wrong,
    out_of_order,
    strayed_hand_out,
)
from gemma4_triage.diagnose.hand_out_words import ELSEWHERE, WHENCE
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.last_slots import asked_beside, firsts_behind_the_last, pages_uncounted
from gemma4_triage.diagnose.rule import Exclusion, Rule, Seen
from gemma4_triage.diagnose.where_wrong import Wrong
from gemma4_triage.finding import Confidence, Finding

ID = "page-given-twice"
_SHARED = "so a second request overwrites the keys and values of the first"
_ON_LIST = f"A page that is still in use was handed out again, {_SHARED}: the free list held it before the call."
_UNKNOWN = f"A page that is still in use was handed out again, {_SHARED}; whether it was freed too early is not known."
_CAUSES: dict[Structure | None, str] = {
    Structure.FULL_FREE_LIST: _ON_LIST,
    Structure.SWA_FREE_LIST: _ON_LIST,
    Structure.ALLOCATION: (
        "A hand-out returned what the allocator did not take off its list, or not the slot behind a request's last: "
        "the result is wrong, not the list."
    ),
    Structure.SWA_MAPPING: (
        "The mapping leads from what was handed out to another slot than the sliding-window pool gave with it, which "
        "lies in another's page: its entry was not written, or was written wrong."
    ),
}

_OUT_OF_ORDER = (
    "A hand-out returned the slots of the pages that it took off its list in a wrong order, {how}: tokens' keys lie in "
    "other places of a page than rows and page tables say."
)

_ORDERS = {Defect.OFF_BY_ONE: "each at its neighbour's place", Defect.SWAPPED: "mixed"}

_EXCHANGED = (
    "The results of a hand-out have changed places: each of its slots is right, and went to another request of the "
    "batch than the one that it continues, or for which the page was taken off the list."
)

_UNTRANSLATED = (
    "A hand-out of the sliding-window pool continues with the slot numbers that the full pool has there: the slot "
    "behind which each request goes on was not translated before that pool was asked (translate_loc_from_full_to_swa)."
)


def find(incident: Incident) -> Finding | None:
    """Return a finding where a page that was handed out is in use, or is free after the hand-out too."""
    dump = incident.first(verdict="alloc_overlap") or strayed_hand_out(incident)
    if dump is None:
        return None
    states, offences = tensor_or_none(dump, "page_states"), dump.manifest.offences
    state = ()
    if states is not None and offences and states.ndim == 2 and 0 <= offences[0].row < states.shape[0]:
        at = (offences[0].row, min(offences[0].column, states.shape[1] - 1))
        state = (cell(dump, "page_states", at, "state of its page before: full side 1 is in use, SWA side the owner"),)
    # Then either the list or an earlier hand-out is wrong, which the audit's finding says.
    wrong = Wrong(None) if _was_listed_while_held(incident, dump) else hand_out_wrong(dump)
    cause = _CAUSES.get(wrong.structure, _UNKNOWN)
    if (elsewhere := asked_elsewhere(dump)).structure is not None:
        return of_hand_out(incident, dump, ID, elsewhere, ELSEWHERE + WHENCE[elsewhere.structure], state)
    if (begun := firsts_behind_the_last(dump)) is not None:
        return of_hand_out(incident, dump, ID, begun[1], begun[0], state)
    if not goes_past_its_page(dump) and (short := pages_uncounted(dump)) is not None:
        return of_hand_out(incident, dump, ID, short[1], short[0], state)
    if wrong.structure is Structure.ALLOCATION and (beside := asked_beside(dump)) is not None:
        cause, wrong = beside
        found = of_hand_out(incident, dump, ID, wrong, cause, state)
        # How many whole pages they are off as well is not seen.
        return found.model_copy(update={"confidence": Confidence.LIKELY})
    if wrong.structure is Structure.ALLOCATION and (order := out_of_order(dump)) is not None:
        cause = _OUT_OF_ORDER.format(how=_ORDERS[order])
    elif wrong.structure is Structure.ALLOCATION and wrong.defect is Defect.SWAPPED:
        cause = _EXCHANGED
    elif wrong.structure is Structure.ALLOCATION and (of_list := of_lists(dump)) is not None:
        cause = of_list
    elif wrong.structure is Structure.ALLOCATION and wrong.defect is Defect.OTHER_SPACE:
        cause = _UNTRANSLATED
    return of_hand_out(incident, dump, ID, wrong, cause, state)


def _was_listed_while_held(incident: Incident, dump: Dump) -> bool:
    """Return whether an audit saw the page listed while it was held, with nobody who put it there: then that is it."""
    census, page_size = first_census(incident), dump.manifest.page_size or 1
    if census is None or census.step > (dump.manifest.step or census.step) or not dump.manifest.offences:
        return False
    listed = census.of(dump.manifest.pool_kind or "full", FREE_AND_HELD)
    pages = {one.page for one in listed if one.never_asked_back}
    return dump.manifest.offences[0].value // page_size in pages


def _is_from_before(seen: Seen) -> bool | None:
    """Return whether calls or events show that the page was freed; False where another thing is wrong."""
    if seen.dump is None:
        return None
    wrong = hand_out_wrong(seen.dump)
    if wrong.structure in (Structure.ALLOCATION, Structure.SWA_MAPPING) and wrong.proof:
        return False
    return True if freed_before(seen.incident, seen.dump) is not None else None


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("the page was freed too early, or put on the list beside all calls", _is_from_before),),
    leads_to=("pool-leak",),
    follows_calls=True,
)
