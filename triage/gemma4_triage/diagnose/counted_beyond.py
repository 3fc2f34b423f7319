"""SWA pages that their running request counts as gone from its window, and that nobody gave back in its stay."""

from __future__ import annotations

from typing import Any

from gemma4_dumps.audit_findings import TABLE, suspects
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import cell, count_of, event, has_ended, readable_events, said
from gemma4_triage.diagnose.freed_pages import cache_has_the_full_page
from gemma4_triage.diagnose.unmapped_pages import EVICTION
from gemma4_triage.finding import Confidence, Evidence, Finding

_RELEASES = ("release_kv_cache", "cache_finished_req")


def counted_beyond_its_frees(rule: str, dump: Dump) -> Finding | None:
    """Return a finding where what a request counts as gone is what it gave back in this stay, and the lost pages.

    None where the events do not have the whole of the stay, or an eviction of the prefix cache may have been it.
    """
    try:
        lost = [one for one in suspects(dump) if one.fault == "nowhere"]
    except DumpError:
        return None
    owners = {one.owner for one in lost}
    (owner,) = owners if len(owners) == 1 else (None,)
    if owner is None or has_ended(dump, owner) is not False or not cache_has_the_full_page(dump):
        return None
    slot, evicted, page = owner[0], count_of(dump, "evicted", owner[0]), dump.manifest.page_size or 1
    events, begin = readable_events(dump), _begin_of_stay(dump, slot, {one.alloc_step for one in lost})
    if evicted is None or begin is None or evicted % page:
        return None
    stay = events[begin:]
    gave = [(begin + number, one) for number, one in enumerate(stay) if _is_of_its_window(one, slot)]
    taken = sum(int(one.get("pages") or 0) for one in stay if _of(one, "shared", slot))
    given_back = sum(int(one.get("pages") or 0) for _, one in gave)
    by_tree = any(one.get("site") == EVICTION and one.get("pool") == "swa" for one in stay)
    if by_tree or evicted // page != taken + given_back + len(lost):
        return None
    step, before = lost[0].alloc_step, _stay_before(dump, slot, begin)
    left = (
        f" Its slot was given up and taken again in step {step}, as by a retraction, and a request that is retracted "
        "keeps its record: the count is what its stay before had left, which was not cleared (mark_kv_released)."
        if before
        else " The count was moved without a free, or is what an earlier stay of the request had left."
    )
    return Finding(
        rule=rule,
        structure=Structure.REQUEST_COUNTERS,
        defect=Defect.STALE if before else None,
        cause=(
            f"The request in slot {slot} counts {evicted} tokens as gone from its sliding window (swa_evicted_seqlen), "
            f"and since it got its slots, in step {step}, {given_back * page} of those were given back: it counts "
            f"{len(lost) * page} too many, which are the lost pages. The prefix cache got its full pages without the "
            f"window's, by that count, and nobody frees these.{left}"
        ),
        confidence=Confidence.LIKELY,
        evidence=(
            said(dump, "offence_count", "pages that are lost"),
            cell(dump, TABLE, (0, 4), "the request slot that owns them"),
            said(dump, "scalars.evicted", "tokens that each request counts as evicted, by slot"),
            event(dump, begin, "step", "when its stay began"),
            *(event(dump, number, "pages", "pages of its window that it gave back since") for number, _ in gave[:4]),
            *before,
        ),
        advice=(
            "Look at what sets and clears that count: mark_kv_released and reset_for_retract, set_evicted_seqlen, "
            "free_swa_out_of_window_slots.",
            "The pool stays smaller until a flush_cache or a restart.",
        ),
        next_commands=(commands.audit(dump),),
    )


def _begin_of_stay(dump: Dump, slot: int, steps: set[int | None]) -> int | None:
    """Return the number of the event by which a request slot got these pages, of one prefill; None where it is gone."""
    events = readable_events(dump)
    if len(steps) != 1:
        return None
    begins = [
        number
        for number, one in enumerate(events)
        if one.get("kind") == "owned" and slot in (one.get("request_slots") or ()) and one.get("step") in steps
    ]
    handed_out = {one.get("site") for one in events if one.get("kind") == "handed_out" and one.get("step") in steps}
    return begins[0] if begins and "alloc_for_extend" in handed_out else None


def _is_of_its_window(one: Any, slot: int) -> bool:
    return _of(one, "free_asked", slot) and one.get("pool") == "swa"


def _of(one: Any, kind: str, slot: int) -> bool:
    return one.get("kind") == kind and one.get("by_request_slot") == slot


def _stay_before(dump: Dump, slot: int, begin: int) -> tuple[Evidence, ...]:
    """Return the release of the stay before, where the slot was given up in the step in which it was taken again."""
    events = readable_events(dump)
    step = events[begin].get("step")
    released = [
        number
        for number, one in enumerate(events[:begin])
        if _of(one, "free_asked", slot) and one.get("site") in _RELEASES and one.get("step") == step
    ]
    return (event(dump, released[-1], "site", "what gave its slot up in that step"),) if released else ()
