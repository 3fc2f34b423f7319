"""A page on the free list that a request or the prefix cache still holds: freed too early, or never freed at all."""

from collections.abc import Sequence

from gemma4_dumps.audit_findings import TABLE, Suspect
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import FREE_AND_HELD
from gemma4_triage.diagnose.evidence import cell, said
from gemma4_triage.diagnose.freed_again import freed_again_and_given
from gemma4_triage.diagnose.freed_pages import (
    entry_names_another,
    free_and_held,
    freed_beside_eviction,
    given_in_use,
    handed_out_in_use,
    handed_out_since,
    holder_has_ended,
    of_request_slots,
    others_are_lost,
    was_freed,
    was_given_now,
    was_handed_out_before,
)
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.listed_slots import AT_SLOTS, SLOTS, SLOTS_LEFT, left_by_the_hand_out
from gemma4_triage.diagnose.rule import Exclusion, Rule, in_dump
from gemma4_triage.diagnose.tree_kinds import of_a_gone_node
from gemma4_triage.diagnose.where_wrong import free_list_of_pool
from gemma4_triage.finding import Confidence, Evidence, Finding

ID, _SEEN = "freed-while-held", (Defect.EARLY, Defect.DUPLICATE)
_PAGES = (
    "Pages are free although a request or the prefix cache still reads them, so the next owner overwrites them: "
    "somebody freed more than was his"
)
_INSTEAD = (
    ", or one in the place of another, or the page had been given back twice before: nobody looked at the calls, so "
    "that a free, its group, an eviction or a row that it followed may be wrong."
)
_OR_ENTRY = (
    ", or the free was right, and a node of the prefix cache or a row names this page where another, which is nowhere "
    "and was never given back, belongs. Their order in the row of the request that cached them tells which."
)
_KEPT = (
    " One call handed all of them out, in both pools: it took fewer pages off its lists than it gave (alloc_extend, "
    "alloc_decode: num_new_pages), or somebody put them back on both."
)
_CLEARED = (
    "The allocators were emptied (clear, as in a flush), and who held pages was not: the prefix cache, a session or a "
    "request has them still, and they are handed out to others."
)


def find(incident: Incident) -> Finding | None:
    dump = incident.first(rule=LEAK, verdict="freed_in_use")
    if dump is None:
        return freed_beside_eviction(incident, ID) or handed_out_since(incident, ID)
    held = free_and_held(dump)
    if held and not any(was_freed(page) for page in held):
        return freed_again_and_given(ID, incident, dump, held) or _never_freed(incident, dump, held)
    if (again := handed_out_in_use(dump, held)) is not None:
        return given_in_use(incident, dump, again, ID)
    of_slots, left = of_request_slots(dump, FREE_AND_HELD), left_by_the_hand_out(dump)
    stranger = entry_names_another(incident, held)
    instead = bool(held) and (others_are_lost(incident, held[0].pool) or was_handed_out_before(dump, held))
    instead |= stranger
    more = _OR_ENTRY if stranger else _INSTEAD if instead else "."
    cleared = bool(held) and all(one.last_event == "cleared" for one in held)
    return Finding(
        rule=ID,
        structure=None if of_slots or instead or cleared else Structure.FREE_CALL,
        defect=Defect.STALE if cleared else None if of_slots or instead else Defect.EARLY,
        cause=SLOTS_LEFT if left else SLOTS if of_slots else _CLEARED if cleared else _PAGES + more,
        confidence=Confidence.POSSIBLE if instead else Confidence.CERTAIN,
        evidence=_evidence(dump, "request slots" if of_slots else "pages", names_owner=not instead),
        advice=(
            AT_SLOTS[left]
            if of_slots
            else "The audit names who freed each page and when: start with free_site of the first row.",
        ),
        next_commands=(commands.audit(dump), commands.serve(incident, "--debug trap", "--probes swa-allocator")),
    )


def _never_freed(incident: Incident, dump: Dump, held: Sequence[Suspect]) -> Finding:
    first = held[0]
    now = was_given_now(incident, first)
    # Whatever else writes a list does not choose, in both pools, pages of one call.
    one_call = len({(one.alloc_site, one.alloc_step) for one in held}) == 1 and len({one.pool for one in held}) > 1
    return Finding(
        rule=ID,
        structure=None if now else free_list_of_pool(first.pool),
        cause=(
            f"The free list of the {first.pool} pool holds pages that a request or the prefix cache still reads, and "
            "nobody gave them back since they were handed out: what is wrong is the list, "
            + ("or a hand-out that nobody saw." if now else "not a free.")
            + (_KEPT if one_call and not now else "")
        ),
        confidence=Confidence.POSSIBLE if now else Confidence.CERTAIN,
        evidence=_evidence(dump),
        advice=("Look at what writes free_pages beside free and alloc: restore_state, clear, a resized pool.",),
        next_commands=(commands.audit(dump), commands.serve(incident, "--debug trap", "--probes swa-allocator")),
    )


def _evidence(dump: Dump, what: str = "pages", names_owner: bool = True) -> tuple[Evidence, ...]:
    # Where an earlier life of the page may have gone wrong, its last owner is innocent.
    owner = said(dump, "offences.0.request_slot", "its last owner's request slot")
    return (
        said(dump, "offence_count", f"{what} that are free and held"),
        said(dump, "offences.0.value", "in how many places the first one is"),
        owner if names_owner else cell(dump, TABLE, (0, 0), "the page"),
        said(dump, "step", "the step of the audit"),
    )


def _has_no_other_free(dump: Dump) -> bool | None:
    """Return False where the table has the free that is named, or calls have it; of request slots it has none."""
    if dump.manifest.rule != LEAK:
        return False
    told = free_and_held(dump) and not of_request_slots(dump, FREE_AND_HELD)
    return False if told or left_by_the_hand_out(dump) else None


RULE = Rule(
    ID,
    find,
    ruled_out_if=(
        Exclusion("the holder is a request that has ended: it was not released", in_dump(holder_has_ended)),
        Exclusion("the audit's table shows another free, or none", in_dump(_has_no_other_free)),
        Exclusion("a node that the prefix cache gave up is among its nodes still", in_dump(of_a_gone_node)),
        Exclusion(
            "the pages were freed beside the allocator's own calls, which the ledger does not see",
            lambda seen: (
                False if seen.finding.defect in _SEEN or (seen.dump and left_by_the_hand_out(seen.dump)) else None
            ),
        ),
    ),
    explains=("page-given-twice", "swa-page-shared"),
    leads_to=("pool-leak",),
    follows_calls=True,
)
