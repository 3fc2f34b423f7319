"""What the prefix cache was given and has no more: lost, evicted without a free, emptied at once, freed by others."""

from collections.abc import Mapping
from typing import Any

from gemma4_dumps.audit_findings import TABLE, Suspect, lives, suspects
from gemma4_dumps.errors import DumpError
from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.census import GIVEN, TREE, lost_pages
from gemma4_triage.diagnose.evidence import cell, has_ended, readable_events, said, tensor_or_none
from gemma4_triage.diagnose.rule import Seen
from gemma4_triage.diagnose.unmapped_pages import OF_A_WINDOW, places_in_row
from gemma4_triage.finding import Confidence, Finding

LOST = (
    "the prefix cache was given all of them, nobody has asked for them back, and none of its nodes has them, so it is "
    "the cache that has lost them"
)
EVICTED = (
    "the prefix cache was given all of them, and has them no more: it has lost them, or an eviction, of which there "
    "was one shortly before, took them out of it and left out their free, or an insert put another request's slots in "
    "their place (a node whose window was gone, insert_recover) and left out theirs"
)
EMPTIED = (
    "the prefix cache was given all of them, and it is empty: it was emptied (flush_cache, a reset of its tree), and "
    "the allocators were not told"
)
SWA_SIDE = (
    "the prefix cache has their full pages, which still lead to them, and counts them as evicted: an eviction left out "
    "their free, or whoever gave the cache these pages counted too many as evicted"
)
PROMPTS = (
    "all of them are of prompts, which the prefix cache takes over, and what their owners were given for their answers "
    "was freed, so it is the cache that has lost them"
)
RELEASED = (
    "their last owner was released without giving anything to the prefix cache, as where it is retracted. That gave "
    "back others of its pages in both pools, and left out these, whose SWA pages were gone before"
)
DUPLICATES = (
    "their last owner runs on without them. The prefix cache had tokens of it already, in pages of its own: what was "
    "put into it gave back other pages of that owner (duplicates), and left these out"
)
RECOVERED = (
    "the prefix cache took SWA pages of others for nodes that had these, as for nodes whose window is gone "
    "(tombstones), and nobody gave these back: a node lost its window where it was split (_split_node, "
    "redistribute_on_node_split), or an eviction took it and left out the free"
)
_OF_THE_CACHE = (
    " They were the cache's before: the eviction of a request's window gave back what lies ahead of its own pages "
    "(cache_protected_len)."
)


_WHY: dict[Structure | None, str] = {
    Structure.TREE_NODE: " The request counts them so: the cache is wrong.",
    Structure.REQUEST_COUNTERS: " The request itself counts fewer tokens so.",
    Structure.WINDOW_EVICTION: " The call that freed what the request counts as gone freed more than that.",
    None: "",
}
_WERE_EVICTED = (
    "The prefix cache counts SWA pages as present that were evicted while their request ran: the pool has them back, "
    "so the parts of the SWA pool exceed it."
)
_BY_ANOTHER = " The request in slot {}, which reads them as its prefix, gave them back."
_WERE_FREED = (
    "The prefix cache counts SWA pages as present that the pool has back, so the parts of the SWA pool exceed it: they "
    "were evicted while their request ran, or somebody gave them back beside the cache. No eviction of them was seen."
)


def were_given(dump: Dump) -> bool:
    """Return whether the cache was given all that is lost of the full pool, and nobody asked for any of it back."""
    lost = [one for one in lost_pages(dump) if one.fault == "nowhere" and one.pool == "full"]
    return bool(lost) and all(one.last_event == GIVEN for one in lost)


def an_eviction_was_near(dump: Dump) -> bool:
    """Return whether the last events before the audit have an eviction of the cache."""
    return any(record.get("site") == "evict_tree" for record in readable_events(dump))


def left_by_a_release(dump: Dump) -> bool:
    """Return whether a release gave back several full pages of the lost ones' owner, and the cache got none then.

    What ends in the cache leaves a release its last page alone. Only full pages are lost, whose SWA pages are not.
    """
    lost, events = [one for one in lost_pages(dump) if one.fault == "nowhere"], readable_events(dump)
    cached = {one.get("step") for one in events if one.get("kind") == GIVEN}
    slots = {
        one.get("by_request_slot")
        for one in events
        if one.get("kind") in ("freed", "free_asked") and int(one.get("pages") or 0) > 1
        if (one.get("pool"), one.get("site")) == ("full", "release_kv_cache") and one.get("step") not in cached
        if all(int(one.get("step") or 0) >= (page.alloc_step or 0) for page in lost)
    }
    return bool(lost) and all(
        one.pool == "full" and one.peer is not None and one.owner is not None and one.owner[0] in slots for one in lost
    )


def left_of_duplicates(dump: Dump) -> bool:
    """Return whether the first lost page's owner had others of its full pages given back as it was cached, and runs on.

    A request that runs has full pages given back by the prefix cache where that has their tokens in pages of its own.
    """
    first = next((one for one in lost_pages(dump) if one.pool == "full" and one.fault == "nowhere"), None)
    if first is None or first.owner is None or first.alloc_step is None or first.last_event != "owned":
        return False
    slot, since = first.owner[0], first.alloc_step
    return any(
        one.get("kind") in ("freed", "free_asked")
        and (one.get("pool"), one.get("site"), one.get("by_request_slot")) == ("full", "cache_unfinished_req", slot)
        and int(one.get("step") or 0) >= since
        for one in readable_events(dump)
    )


def windows_taken_again(dump: Dump) -> bool:
    """Return whether SWA pages alone are lost whose full pages the cache has, or gave back, with others in their place.

    The mapping leads from such a page of the cache to another SWA page than it was handed out with.
    """
    table, lost = tensor_or_none(dump, "holders"), [one for one in lost_pages(dump) if one.fault == "nowhere"]
    if table is None or table.ndim != 2 or table.shape[1] != 3 or any(one.pool != "swa" for one in lost):
        return False
    led = {page: to for page, holder, to in table.tolist() if holder == TREE}
    back = {
        page
        for one in readable_events(dump)
        if one.get("pool") == "full" and one.get("kind") in ("freed", "free_asked")
        if one.get("site") in ("cache_unfinished_req", "cache_finished_req")
        for page in one.get("first_pages") or ()
    }
    elsewhere = [one for one in lost if one.peer in led and led[one.peer] not in (0, one.page)]
    return bool(elsewhere) and all(one in elsewhere or one.peer in back for one in lost)


def freed_without(dump: Dump, lost: Suspect, *sites: str) -> int | None:
    """Return the number of the event by which one of these sites freed the full page of a lost SWA page; or None.

    None as well where that SWA page was handed out since, or given back.
    """
    events, since = readable_events(dump), lost.alloc_step or 0
    if lost.pool != "swa" or lost.last_event not in ("owned", "handed_out"):
        return None
    # What freed the full page first since then is what left the other behind.
    begin = max((n for n, one in enumerate(events) if _is_of(one, "swa", lost.page)), default=-1)
    of_full = (n for n, one in enumerate(events) if n > begin and _is_of(one, "full", lost.peer))
    back = (n for n in of_full if events[n].get("kind") in ("freed", "free_asked"))
    first = next((n for n in back if int(events[n].get("step") or 0) >= since), None)
    return first if first is not None and events[first].get("site") in sites else None


def _is_of(event: Mapping[str, Any], pool: str, page: int | None) -> bool:
    return event.get("pool") == pool and page in (event.get("first_pages") or ())


def is_empty(dump: Dump) -> bool:
    """Return whether the cache has nothing any more of several pages, and what is lost is all that the pool lacks."""
    scalars, page = dump.manifest.scalars, dump.manifest.page_size or 1
    sides = [scalars.get(f"full_{side}") for side in ("total", "available", "evictable", "protected")]
    if not all(isinstance(side, int) for side in sides):
        return False
    total, available, evictable, protected = (int(side or 0) for side in sides)
    lost = sum(one.fault == "nowhere" and one.pool == "full" for one in lost_pages(dump))
    return evictable == protected == 0 and lost > 1 and total - available == lost * page


def are_of_prompts(dump: Dump) -> bool:
    """Return whether all that is lost was handed out for prompts, and the events have a free of such an owner's answer.

    Who was never released leaves its answer's pages too, unless it never got one.
    """
    lost = [one for one in lost_pages(dump) if one.fault == "nowhere"]
    since = min((one.alloc_step or 0 for one in lost), default=0)
    slots = {one.owner[0] for one in lost if one.owner is not None}
    frees = [
        one
        for one in readable_events(dump)
        if one.get("kind") in ("free_asked", "freed") and (one.get("step") or 0) >= since
    ]
    ends = ("release_kv_cache", "cache_finished_req")
    of_owner = any(
        one.get("by_request_slot") in slots or (one.get("by_request_slot") is None and one.get("site") in ends)
        for one in frees
    )
    return of_owner and all(one.alloc_site == "alloc_for_extend" for one in lost)


def may_be_an_eviction(seen: Seen) -> bool | None:
    """Return None where a cache is empty: an eviction may have been asked for all that it had."""
    return None if EMPTIED in seen.finding.cause else False


def were_the_caches_before(dump: Dump) -> bool:
    """Return whether each page without its SWA page was the prefix cache's in a step before that of its SWA free."""
    places = places_in_row(dump)
    try:
        past, found = lives(dump), [one.page for one in suspects(dump) if one.fault == "unmapped"]
    except DumpError:
        return False
    if places is None or not found:
        return False
    given = (past["full", page][-1].given_step if ("full", page) in past else None for page in found)
    freed = (places[0].get(page, (0, -1))[1] for page in found)
    return all(step is not None and at > step for at, step in zip(freed, given, strict=True))


def window_given_back_by(dump: Dump) -> int | None:
    """Return the request slot whose window gave back the SWA pages of pages that the cache has, and it reads as well.

    None where a page was the cache's only after that free, where anybody else may have given one back, and where the
    request is not known to have had all of them from the cache.
    """
    try:
        past, found = lives(dump), [one for one in suspects(dump) if one.fault == "unmapped"]
    except DumpError:
        return None
    events, slots = readable_events(dump), set[Any]()
    for page in found:
        given = past["full", page.page][-1].given_step if ("full", page.page) in past else None
        asked = [
            one
            for one in events
            if one.get("kind") == "free_asked" and _is_of(one, "swa", page.peer) and one.get("site") in OF_A_WINDOW
        ]
        if page.last_event != GIVEN or given is None or not asked or int(asked[-1].get("step") or 0) <= given:
            return None
        slot = asked[-1].get("by_request_slot")
        shared = any(
            one.get("kind") == "shared" and one.get("by_request_slot") == slot and _is_of(one, "full", page.page)
            for one in events
        )
        slots.add(slot if shared else None)
    return slots.pop() if len(slots) == 1 and isinstance(next(iter(slots)), int) else None


def said_of_windows(structure: Structure | None, evicted: bool, of_cache: bool, by: int | None) -> str:
    """Return what is said of SWA pages that the cache counts on and the pool has back.

    Args:
        structure: What is wrong; None where that is not known.
        evicted: Whether an eviction is known to have given them back.
        of_cache: Whether they were the cache's before.
        by: The request slot that gave them back, where it is another's than their owner's.
    """
    said = _WERE_EVICTED if evicted else _WERE_FREED
    said += "" if by is None else _BY_ANOTHER.format(by)
    return said + (_OF_THE_CACHE if of_cache else _WHY[structure])


_AHEAD = 2
"""Pages that a request may have been given for drafts ahead of its tokens."""


def lost_by_own_count(rule: str, dump: Dump) -> Finding | None:
    """Return a finding where the last owner of lost pages runs, and counts fewer slots than tokens that it has.

    None where it counts as many, or the dump does not say.
    """
    told, lost = dump.manifest.scalars.get("counted"), lost_pages(dump)
    owner = lost[0].owner if lost else None
    if owner is None or not isinstance(told, str) or has_ended(dump, owner) is not False:
        return None
    of = next((one.split(":") for one in told.split(",") if one.startswith(f"{owner[0]}:")), [])
    if len(of) != 3 or not all(part.isdecimal() for part in of) or int(of[2]) >= int(of[1]):
        return None
    page = dump.manifest.page_size or 1
    beyond = -(-int(of[1]) // page) - -(-int(of[2]) // page)
    in_full = sum(one.pool == "full" for one in lost)
    # All of them its own, and no more than stand beyond that count, with what was taken ahead.
    if any(one.owner != owner for one in lost) or not 0 < in_full <= beyond + _AHEAD:
        return None
    return Finding(
        rule=rule,
        structure=Structure.REQUEST_COUNTERS,
        defect=Defect.ZERO if of[2] == "0" else None,
        cause=(
            f"Pages belong to nobody and are not free: their last owner, in slot {owner[0]}, still runs, and counts "
            f"slots for {of[2]} tokens (kv_allocated_len) where {of[1]} have keys: what is beyond that count it has no "
            "more, and its next slots are counted from there."
        ),
        confidence=Confidence.LIKELY,
        evidence=(
            said(dump, "offence_count", "pages that are lost"),
            cell(dump, TABLE, (0, 4), "the request slot that owned the first of them last"),
            said(dump, "scalars.counted", "by request slot: tokens with keys, and tokens with slots"),
            said(dump, "step", "when it was seen"),
        ),
        advice=("Look at what sets kv_allocated_len: alloc_for_spec_decode, a release that went on, a retraction.",),
        next_commands=(commands.audit(dump),),
    )


def why_lost(known: bool, ended: bool | None) -> str:
    """Return what is said of lost pages by their last owner alone."""
    if known:
        return "their last owner ended without giving them back"
    if ended is False:
        return "their last owner still runs, and neither its row nor what it counts as its own has them"
    return "whose they were, or what became of them, is not known"
