"""Half an allocation: it succeeds in one pool, fails in the other, and keeps what it took."""

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.earlier_calls import had_room, nothing_moved_before, passed_the_check
from gemma4_triage.diagnose.evidence import counted_by_the_pair, said
from gemma4_triage.diagnose.incident import LOST_PAGES, Incident
from gemma4_triage.diagnose.rule import LOSES_PAGES, Exclusion, Rule, in_dump
from gemma4_triage.diagnose.where_wrong import are_free, free_list
from gemma4_triage.finding import Confidence, Finding

ID = "failed-allocation-keeps-pages"
_KEPT = (
    "took pages from one pool of the pair, found the other one short, gave nothing, and did not give back what it had"
)

_PASSED = (
    "A decode takes {0} new pages, and the {2} pool had {1}: SGLang's check ahead of a decode let it pass, where it "
    "retracts requests until the step fits. It counts less than the step takes, or leaves that pool out."
)
_AT_CHECK = (
    "Look at that check: new_tokens_required_next_decode (a request takes a page where kv_committed_len is whole "
    "pages), check_decode_mem, check_decode_capacity."
)


def find(incident: Incident) -> Finding | None:
    dump = next((dump for dump in incident.of(rule=LOST_PAGES) if ".alloc" in dump.manifest.site), None)
    if dump is None:
        return None
    refused = had_room(dump)
    room = None if refused else _room_that_is_none(dump)
    passed = None if refused or room else passed_the_check(dump)
    return Finding(
        rule=ID,
        structure=Structure.ALLOCATION if refused else None if passed else free_list(dump),
        defect=None if passed else Defect.LOST,
        cause=(
            "An allocation gave nothing although both pools of the pair had the pages that it was asked for, and did "
            "not give back what it had taken: the call is wrong, and no pool is too small."
            if refused
            else _PASSED.format(*passed) + f" The allocation that followed {_KEPT} taken."
            if passed
            else f"An allocation {_KEPT} taken."
            if room is None
            else f"The allocator of both pools counts {room[0]} tokens as free (available_size), and the pool with "
            f"fewer has {room[1]}: whoever asks it before allocating is told of room that there is not. An allocation "
            f"that went on then {_KEPT} taken."
        ),
        # The probe compares the free lists before and after a call that returned nothing. Something else may have
        # taken what the check had seen.
        confidence=Confidence.LIKELY if passed and not nothing_moved_before(dump) else Confidence.CERTAIN,
        evidence=(
            said(dump, "site", "the call that gave nothing"),
            said(dump, "pool_kind", "the pool whose free list is shorter than before"),
            said(dump, "offence_count", "pages that it lacks"),
            said(dump, "offences.0.value", "the first of them"),
            said(dump, "scalars.full_available", "tokens free in the full pool afterwards"),
            said(dump, "scalars.swa_available", "tokens free in the SWA pool afterwards"),
            *((said(dump, "scalars.pair_available", "tokens that both together count as free then"),) if room else ()),
        ),
        advice=("Look at what that call does between the pools' own allocators and its return.",)
        if refused
        else (
            _AT_CHECK,
            "Its pages stay lost until the pool is cleared; no pool has to be larger for a step that is retracted.",
        )
        if passed
        else (
            "These pages stay lost until the pool is cleared. Give the fuller pool more tokens: "
            "--swa-full-tokens-ratio, or --mem-fraction-static for both.",
            "Look at available_size of the allocator, which has to be that of the pool with fewer free."
            if room
            else "SGLang checks both pools before it decodes; look at what made the check and the allocation disagree.",
        ),
        next_commands=(
            commands.serve(incident, "--debug trap", "--probes swa-allocator"),
            commands.corpus("alloc-on-one-pool"),
        ),
        upstream=("SGLang 7909",),
    )


def _room_that_is_none(dump: Dump) -> tuple[int, int] | None:
    """Return what the pair says is free, and what its smaller pool has; None where it says no more than that."""
    counted = counted_by_the_pair(dump)
    return counted if counted is not None and counted[0] > counted[1] else None


RULE = Rule(
    ID,
    find,
    ruled_out_if=(Exclusion("the pages are in the free list again", in_dump(are_free)),),
    injected_by=("alloc-on-one-pool",),
    explains=("pages-leaked",),
    leads_to=LOSES_PAGES,
)
