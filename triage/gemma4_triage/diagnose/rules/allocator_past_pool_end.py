"""An allocator hands out a slot that its pool does not have; writes and reads outside the buffer follow from it."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.earlier_calls import all_were_asked, asked_elsewhere, asked_wrong, seen_before
from gemma4_triage.diagnose.evidence import lies_inside, said
from gemma4_triage.diagnose.hand_out import hand_out_wrong, is_exchanged, is_what_the_pool_gave
from gemma4_triage.diagnose.hand_out_words import (
    AT_BATCH,
    AT_FREES,
    AT_LISTS,
    AT_MAP,
    AT_ROWS,
    ELSEWHERE,
    EXCHANGED,
    GONE_ON,
    SEEN,
    WHENCE,
    WRITTEN,
    cause_of,
)
from gemma4_triage.diagnose.incident import PAGE_TABLE, Incident
from gemma4_triage.diagnose.last_slots import goes_on_for_the_ended
from gemma4_triage.diagnose.rule import LEAVES_BUFFERS, Exclusion, Rule, in_dump
from gemma4_triage.diagnose.where_wrong import Wrong
from gemma4_triage.finding import Confidence, Evidence, Finding

ID = "allocator-past-pool-end"
_ASKED = "last_loc"
"""The table of what a call was given: the last slot of each request, from which it continues."""
_LISTS = (Structure.FULL_FREE_LIST, Structure.SWA_FREE_LIST)
_ASKED_WRONG = (Structure.BATCH_LENGTHS, Structure.REQUEST_ROW, Structure.REQUEST_COUNTERS)
_NOT_PROVEN = (*_LISTS, *_ASKED_WRONG, Structure.SWA_MAPPING)


def find(incident: Incident) -> Finding | None:
    dump = incident.first(verdict="alloc_out_of_range")
    if dump is None:
        return None
    given = {offence.value for offence in dump.manifest.offences}
    evidence: list[Evidence] = [
        said(dump, "site", "the call that was given it, or handed it out"),
        said(dump, "pool_kind", "the pool"),
        said(dump, "offences.0.value", "the slot"),
        said(dump, "offences.0.upper", "the first slot that the pool does not have"),
    ]
    for later in incident.of(rule=PAGE_TABLE, verdict=("write_out_of_range", "out_of_range")):
        if any(offence.value in given for offence in later.manifest.offences):
            evidence.append(said(later, "offences.0.value", "the same slot, on its way to a kernel"))
            break
    if (ended := goes_on_for_the_ended(dump)) is not None:
        return _of_the_ended(incident, dump, (*evidence, *ended[1].proof), *ended)
    elsewhere = asked_elsewhere(dump).structure is not None
    asked = _was_asked(dump) or elsewhere
    beyond = not asked and any(offence.value >= offence.upper for offence in dump.manifest.offences)
    wrong, mapped = _whence(dump), is_what_the_pool_gave(dump) is False
    follows = seen_before(incident, dump) if wrong.structure in _LISTS else ()
    written = mapped and (EXCHANGED if is_exchanged(dump) else WRITTEN)
    gone_on = wrong.structure is Structure.BATCH_LENGTHS and not asked
    whence = SEEN if follows else WHENCE.get((wrong.structure, wrong.defect)) or WHENCE.get(wrong.structure, "")
    return Finding(
        rule=ID,
        structure=None if follows else wrong.structure,
        defect=wrong.defect or (Defect.PAST_END if beyond else None),
        cause=GONE_ON
        if gone_on
        else written or (ELSEWHERE if elsewhere else cause_of(asked, beyond, all_were_asked(dump))) + whence,
        # A page 0 that no account says is wrong may follow from what asked for it: a length, a row or a mapping.
        confidence=Confidence.POSSIBLE
        if follows or (wrong.structure is None and not asked and not beyond)
        else Confidence.CERTAIN,
        evidence=(*evidence, *wrong.proof, *follows),
        advice=(
            AT_MAP if mapped else AT_ROWS if asked else AT_FREES if _is_of_a_free(wrong) else AT_LISTS,
            "Trust no output since the first such hand-out.",
        ),
        next_commands=(
            commands.serve(incident, "--debug trap", "--probes swa-allocator,page-table"),
            commands.show(dump) if asked or mapped else commands.corpus("swa-alloc-oob"),
        ),
        upstream=() if asked or mapped else ("SGLang 9123",),
    )


def _of_the_ended(incident: Incident, dump: Dump, evidence: tuple[Evidence, ...], cause: str, wrong: Wrong) -> Finding:
    return Finding(
        rule=ID,
        structure=wrong.structure,
        defect=wrong.defect,
        cause=cause,
        confidence=Confidence.LIKELY,
        evidence=evidence,
        advice=(AT_BATCH, "Trust no output since the first such hand-out."),
        next_commands=(commands.serve(incident, "--debug trap"), commands.show(dump)),
    )


def _is_of_a_free(wrong: Wrong) -> bool:
    return (wrong.structure, wrong.defect) == (Structure.FREE_CALL, Defect.ZERO)


def _was_asked(dump: Dump) -> bool:
    return any(offence.table == _ASKED for offence in dump.manifest.offences)


def _whence(dump: Dump) -> Wrong:
    if _was_asked(dump):
        return asked_wrong(dump)
    elsewhere = asked_elsewhere(dump)
    return elsewhere if elsewhere.structure is not None else hand_out_wrong(dump)


def _is_from_before(dump: Dump) -> bool | None:
    """Return None where a list, a row or the mapping had the slot: how it came there, this call does not say."""
    structure, gave = _whence(dump).structure, is_what_the_pool_gave(dump)
    if gave is False:
        return False
    of_swa = bool(dump.manifest.offences) and dump.manifest.offences[0].column == 1
    # Without what the pool itself gave, the mapping may have been written wrong after it.
    unproven = structure is Structure.ALLOCATION and of_swa and gave is None
    return None if unproven or structure in _NOT_PROVEN else False


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("the slot lies inside the pool", in_dump(lies_inside)),
        Exclusion(
            "a call before this one put the slot there: then that call is what is wrong", in_dump(_is_from_before)
        ),
        Exclusion(
            "something wrote over the list between the free before the call and the call",
            in_dump(lambda dump: None if _is_of_a_free(_whence(dump)) else False),
        ),
    ),
    injected_by=("swa-alloc-oob",),
    explains=("write-past-buffer", "page-past-pool-end", "index-outside-buffer"),
    leads_to=LEAVES_BUFFERS,
)
