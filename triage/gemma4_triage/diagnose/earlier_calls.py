"""What earlier calls tell of a wrong slot: who wrote its mapping, who freed its page, and whether there was room."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemma4_dumps.audit_findings import TABLE
from gemma4_dumps.reader import Dump
from gemma4_dumps.schema import Offence
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose.census import OUT_OF_RANGE, first_census, invalid_defect, lost_pages
from gemma4_triage.diagnose.evidence import cell, event, readable_events, tensor_or_none
from gemma4_triage.diagnose.hand_out import POOLS, hand_out_wrong
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.recorded_calls import gives_back, is_release, request_at, slots_of, swa_peer
from gemma4_triage.diagnose.where_wrong import Wrong
from gemma4_triage.finding import Evidence

_OF_DECODES = ("alloc_for_decode", "spec_v2_decode")
_FEWEST = 2
"""Requests that went on where they ended, beside one that did not, before it is told of that one."""


def mapping_since(dump: Dump) -> Wrong:
    """Return the mapping as wrong where a call that gives back finds another page there than it was written with.

    No structure where the latest call naming the slot had the same, or none did.
    """
    records, slots, page = readable_events(dump), tensor_or_none(dump, "slots"), dump.manifest.page_size or 1
    free = tensor_or_none(dump, "free_pages_swa")
    bad = dump.manifest.offences[0] if dump.manifest.offences else None
    if not records or bad is None or (bad.table, bad.column) != ("slots", 1) or slots is None or slots.ndim != 2:
        return Wrong(None)
    if not gives_back(records[-1]) or not 0 <= bad.row < len(slots):
        return Wrong(None)
    full = int(slots[bad.row, 0])
    named = ((number, own) for number, past in enumerate(records[:-1]) if (own := swa_peer(past, full)) is not None)
    number, own = max(named, default=(-1, 0))
    if number < 0 or gives_back(records[number]) or own == bad.value or own <= 0:
        return Wrong(None)
    # Its SWA page may have been given to another full page since, as where a node of the cache gets a window again.
    if any(own in slots_of(past.get("swa")) for past in records[number + 1 : -1]):
        return Wrong(None)
    to, full_page, own_page = bad.value // page, full // page, own // page
    defect = None
    if to not in range(1, dump.manifest.extents.get("pages_swa_pool", to + 1)):
        defect = invalid_defect(to)
    elif abs(to - own_page) == 1:
        defect = Defect.OFF_BY_ONE
    elif to == full_page:
        defect = Defect.OTHER_SPACE
    elif free is not None and to in free:
        defect = Defect.STALE
    proof = event(dump, number, "call", f"what gave page {full_page} the SWA page {own_page}, not {to}")
    return Wrong(Structure.SWA_MAPPING, defect, (proof,))


def window_given_back(dump: Dump) -> tuple[Evidence, ...]:
    """Return the call that gave back the SWA page of a slot which a free finds without one; nothing if none is seen."""
    records, slots = readable_events(dump), tensor_or_none(dump, "slots")
    bad = dump.manifest.offences[0] if dump.manifest.offences else None
    if bad is None or (bad.table, bad.column) != ("slots", 1) or slots is None or slots.ndim != 2:
        return ()
    if not records or not 0 <= bad.row < len(slots):
        return ()
    full = int(slots[bad.row, 0])
    number = next((n for n in reversed(range(len(records) - 1)) if full in slots_of(records[n].get("full"))), None)
    if number is None or not str(records[number].get("call")).startswith("free_swa"):
        return ()
    peer = swa_peer(records[number], full)
    return (event(dump, number, "call", f"what gave back SWA slot {peer} of full slot {full} before"),) if peer else ()


def given_back_whole(dump: Dump) -> int | None:
    """Return the number of the call that gave back, in both pools, the full page of a free's first bad slot before.

    None where something else was the latest that was done with that page, or the dump does not say. What ends a group
    repeats its calls.
    """
    records, slots = readable_events(dump), tensor_or_none(dump, "slots")
    bad, page = dump.manifest.offences[0] if dump.manifest.offences else None, dump.manifest.page_size or 1
    if bad is None or (bad.table, bad.column) != ("slots", 1) or slots is None or slots.ndim != 2:
        return None
    if len(records) < 2 or not gives_back(records[-1]) or not 0 <= bad.row < len(slots):
        return None
    full = int(slots[bad.row, 0]) // page
    for number in reversed(range(len(records) - 1)):
        call = str(records[number].get("call"))
        if call == "free_group_end" or full not in {one // page for one in slots_of(records[number].get("full"))}:
            continue
        return number if call in ("free", "free_segment", "free_full_segment") else None
    return None


def begins_where_it_ended(dump: Dump, number: int) -> bool:
    """Return whether a dump's latest call begins with the page within which the call of this number ended."""
    records, page = readable_events(dump), dump.manifest.page_size or 1
    first, then = (slots_of(records[at].get("full")) for at in (number, -1))
    within = bool(first) and (first[-1] + 1) % page != 0
    return within and bool(then) and then[0] == first[-1] // page * page and records[-1].get("call") == "free_segment"


def freed_before(incident: Incident, dump: Dump) -> Wrong | None:
    """Return the free of the page of a hand-out's first bad slot since it was handed out last; None if none is seen.

    By the calls that the dump has, else by the events of the incident's audits. It came too early where the slot after
    which the request was to go on was its newest, by the decode before; else no structure is named.
    """
    bad = dump.manifest.offences[0] if dump.manifest.offences else None
    if bad is None or (bad.table == "slots" and bad.column not in (0, 1)):
        return None
    if hand_out_wrong(dump).structure is Structure.ALLOCATION:
        return None
    pool, page = dump.manifest.pool_kind or "full", bad.value // (dump.manifest.page_size or 1)
    if bad.table == "suspects":
        page = next((one.page for one in lost_pages(dump)[bad.row : bad.row + 1]), 0)
        pool = next((one.pool for one in lost_pages(dump)[bad.row : bad.row + 1]), pool)
    elif bad.table == "slots":
        pool = POOLS[bad.column]
    if bad.table == "slots" and (wrong := _freed_by_a_call(dump, bad, pool, page)) is not None:
        return wrong
    for audit in incident.of(rule=LEAK):
        number = _freed_by_an_event(readable_events(audit), pool, page, dump.manifest.step)
        if number is not None:
            meaning = f"what gave page {page} of the {pool} pool back before it was handed out again"
            return Wrong(None, None, (event(audit, number, "site", meaning),))
    return None


def _freed_by_a_call(dump: Dump, bad: Offence, pool: str, page: int) -> Wrong | None:
    """Return the free among the calls that a dump of the allocator has, if no later one named the page."""
    events, size = readable_events(dump), dump.manifest.page_size or 1
    past = events[:-1]
    named = (n for n in reversed(range(len(past))) if page in {slot // size for slot in slots_of(past[n].get(pool))})
    number = next((n for n in named if pool == "swa" or not str(past[n].get("call")).startswith("free_swa")), None)
    if number is None or not gives_back(past[number]):
        return None
    at, asked = request_at(events[-1], bad.row), events[-1].get("last_loc")
    decode = next((one for one in reversed(past) if one.get("call") == "alloc_decode"), {})
    goes_on = at is not None and isinstance(asked, list) and at < len(asked) and asked[at] >= 0
    newest = goes_on and bad.value % size > 0 and slots_of(decode.get("full")) == asked
    proof = event(dump, number, "site", f"what gave page {page} of the {pool} pool back, which has a new slot since")
    newest = newest and not is_release(past, number)
    return Wrong(Structure.FREE_CALL if newest else None, Defect.EARLY if newest else None, (proof,))


def _freed_by_an_event(records: list[Mapping[str, Any]], pool: str, page: int, step: int | None) -> int | None:
    """Return the number of the event that gave the page back before the latest hand-out that is no later than `step`.

    None where something else was the latest that happened to it until then.
    """
    of_page = [
        number
        for number, one in enumerate(records)
        if one.get("pool") == pool and page in (one.get("first_pages") or ())
        if step is None or (one.get("step") or 0) <= step
    ]
    given = [number for number in of_page if records[number].get("kind") == "handed_out"]
    before = [number for number in of_page if given and number < given[-1]]
    return before[-1] if before and records[before[-1]].get("kind") in ("freed", "free_asked") else None


def had_room(dump: Dump) -> bool | None:
    """Return whether both pools had the pages that the latest call asked for; None where the dump does not say."""
    counted = asked_and_free(dump)
    return None if counted is None else min(counted[1:]) >= counted[0]


def asked_and_free(dump: Dump) -> tuple[int, int, int] | None:
    """Return how many pages the latest call asked for, and how many the full and the SWA pool had.

    None where the dump does not say.
    """
    records, page = readable_events(dump), dump.manifest.page_size or 1
    free = [tensor_or_none(dump, f"free_before_{pool}") for pool in POOLS]
    if not records or not isinstance(records[-1].get("seq_lens"), list):
        return None
    call = records[-1]
    begins, ends = call.get("prefix_lens"), [int(end) for end in call["seq_lens"]]
    if not isinstance(begins, list) or len(begins) != len(ends):
        begins = [end - 1 for end in ends]
    asked = sum(-(-end // page) - -(-int(begin) // page) for begin, end in zip(begins, ends, strict=True))
    counts = [len(pages) for pages in free if pages is not None]
    return None if len(counts) < len(POOLS) else (asked, counts[0], counts[1])


def passed_the_check(dump: Dump) -> tuple[int, int, str] | None:
    """Return how many pages a decode took, how many the pool with fewer had, and which that is, where it lacked some.

    SGLang looks ahead of a decode whether it fits (check_decode_mem). None of another call.
    """
    counted = asked_and_free(dump)
    if counted is None or readable_events(dump)[-1].get("site") not in _OF_DECODES:
        return None
    asked, full, swa = counted
    free, pool = (full, "full") if full <= swa else (swa, "sliding-window")
    return (asked, free, pool) if free < asked else None


def nothing_moved_before(dump: Dump) -> bool:
    """Return whether both pools had as many tokens free before the latest call as after the one before it."""
    records = readable_events(dump)
    return len(records) > 1 and records[-2].get("free_after") == records[-1].get("free_before") is not None


def asked_wrong(dump: Dump) -> Wrong:
    """Return why a decode asked to continue from a slot that no request has, by the decode before it.

    There every request of the batch was a token shorter, and its last slot is known. Says nothing of another batch.
    """
    if (drafts := _drafts_begin_elsewhere(dump)).structure is not None:
        return drafts
    bad = dump.manifest.offences[0] if dump.manifest.offences else None
    return Wrong(None) if bad is None else _asked_of(dump, bad.row, bad.value)


def asked_elsewhere(dump: Dump) -> Wrong:
    """Return why a decode gave a wrong slot to a request that it was asked to continue from another slot than its last.

    No structure where it was asked for the last one, by the decode before, or the dump does not say.
    """
    bad = dump.manifest.offences[0] if dump.manifest.offences else None
    call = (readable_events(dump) or [{}])[-1]
    if bad is None or bad.table != "slots":
        return Wrong(None)
    at, asked = request_at(call, bad.row), call.get("last_loc")
    if at is None or not isinstance(asked, list) or at >= len(asked) or not isinstance(asked[at], int):
        return Wrong(None)
    return _asked_of(dump, at, asked[at])


def _asked_of(dump: Dump, at: int, value: int) -> Wrong:
    """Return why the request at a place of a decode's batch was to continue from a slot, by the decode before."""
    decodes = [record for record in readable_events(dump)[-2:] if record.get("call") == "alloc_decode"]
    if len(decodes) < 2:
        return Wrong(None)
    before, now = (record.get("seq_lens") for record in decodes)
    if not (isinstance(before, list) and isinstance(now, list) and len(before) == len(now) > 1 and at < len(now)):
        return Wrong(None)
    asked = decodes[-1].get("last_loc")
    if not isinstance(asked, list) or asked[at : at + 1] != [value]:
        return Wrong(None)
    if any(new - old != 1 for row, (old, new) in enumerate(zip(before, now, strict=True)) if row != at):
        return Wrong(None)
    number = len(readable_events(dump)) - 1
    if now[at] - before[at] != 1:
        length, others = now[at] - 1, {count - 1 for row, count in enumerate(now) if row != at}
        said = event(dump, number, f"seq_lens.{at}", "the length with the new token; every other request grew by one")
        return Wrong(Structure.BATCH_LENGTHS, _defect_of_length(length, before[at], others), (said,))
    last = slots_of(decodes[0].get("full"))
    if at < len(last) and last[at] != value and len(last) == len(asked):
        # Another batch of as many requests, each as long, has other slots throughout.
        if any(slot != own for row, (slot, own) in enumerate(zip(asked, last, strict=True)) if row != at):
            return Wrong(None)
        said = event(dump, number, f"last_loc.{at}", f"the row's last slot; the decode before gave it {last[at]}")
        return Wrong(Structure.REQUEST_ROW, _defect_of_slot(dump, value, last, at), (said,))
    return Wrong(None)


def _drafts_begin_elsewhere(dump: Dump) -> Wrong:
    """Return the count of allocated tokens of the one request whose slots for drafts do not begin where they ended.

    The call before gave the same batch its slots; of every other request they go on there.
    """
    records = readable_events(dump)
    numbers = [number for number, one in enumerate(records) if one.get("site") == "spec_v2_decode"][-2:]
    calls = [records[number] for number in numbers if records[number].get("call") == "alloc_extend"]
    if len(calls) < 2 or not dump.manifest.offences or numbers[-1] != len(records) - 1:
        return Wrong(None)
    if any(one.get("site") == "alloc_for_extend" for one in records[numbers[0] :]):
        # Another request may have joined in the place of one that left.
        return Wrong(None)
    ended, begins, at = calls[0].get("seq_lens"), calls[1].get("prefix_lens"), dump.manifest.offences[0].row
    if not (isinstance(ended, list) and isinstance(begins, list) and len(ended) == len(begins) > _FEWEST):
        return Wrong(None)
    moved = [row for row, (old, new) in enumerate(zip(ended, begins, strict=True)) if old != new]
    if moved != [at] or (calls[1].get("last_loc") or [])[at : at + 1] != [dump.manifest.offences[0].value]:
        return Wrong(None)
    meaning = f"until where the request is said to have slots; the call before ended at {ended[at]}"
    said = event(dump, numbers[-1], f"prefix_lens.{at}", meaning)
    page = dump.manifest.page_size or 1
    by_a_page = abs(begins[at] - ended[at]) in (1, page)
    return Wrong(Structure.REQUEST_COUNTERS, Defect.OFF_BY_ONE if by_a_page else None, (said,))


def _defect_of_length(length: int, right: int, others: set[int]) -> Defect | None:
    if length <= 0:
        return Defect.NEGATIVE if length else Defect.ZERO
    if abs(length - right) == 1:
        return Defect.OFF_BY_ONE
    return Defect.FOREIGN if length in others else None


def _defect_of_slot(dump: Dump, slot: int, last: list[int], at: int) -> Defect | None:
    """Return what is wrong with the last slot of the row at a place, by what the decode before gave each request."""
    pages, page = dump.manifest.extents.get("pages_full_pool"), dump.manifest.page_size or 1
    if slot <= 0:
        return Defect.NEGATIVE if slot else Defect.ZERO
    if pages is not None and slot // page >= pages:
        return Defect.PAST_END
    if slot in last:
        return Defect.FOREIGN
    return Defect.OFF_BY_ONE if abs(slot - last[at]) in (1, page) else None


def all_were_asked(dump: Dump) -> bool:
    """Return whether every request of several, all of which have tokens, was to go on from page 0."""
    call = (readable_events(dump) or [{}])[-1]
    begins, asked = call.get("prefix_lens"), call.get("last_loc")
    if not (isinstance(begins, list) and isinstance(asked, list) and len(begins) == len(asked) > 1):
        return False
    return all(begin > 0 for begin in begins) and not any(asked)


def seen_before(incident: Incident, dump: Dump) -> tuple[Evidence, ...]:
    """Return the page on the free list in an audit ahead of the call, if there is one: who put it there is the cause.

    Both write their dumps at once, so the older one looked first.
    """
    census = first_census(incident)
    if census is None or census.dumps[0].manifest.created_utc >= dump.manifest.created_utc:
        return ()
    pages = {offence.value // (dump.manifest.page_size or 1) for offence in dump.manifest.offences}
    listed = (one for one in census.of(dump.manifest.pool_kind or "full", OUT_OF_RANGE) if one.page in pages)
    return tuple(cell(one.dump, TABLE, (one.row, 0), "the free list had it at the audit before") for one in listed)[:1]
