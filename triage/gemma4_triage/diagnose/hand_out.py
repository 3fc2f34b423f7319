"""Whether a wrong page came off a free list, or is what a hand-out was turned into: the lists before and after it.

| the page                                                       | is wrong               |
|----------------------------------------------------------------|------------------------|
| is of the mapping, and its own pool gave another               | the mapping            |
| came in place of one that the call took off and did not return | what the call returned |
| continues a request, but not the page of its last slot         | what the call returned |
| ... of the sliding-window pool, where the mapping leads there  | the mapping            |
| ... and a free before named the slot that was its newest       | that free              |
| ... and calls have that request go on behind its last slot     | the length             |
| is the right one, and its slot is not behind the last one      | what the call returned |
| was on the list, and the call took it off                      | the list               |
| is of the full pool, on no list or still on one after the call | what the call returned |

Dumps without the lists before the call say nothing of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gemma4_dumps.reader import Dump
from gemma4_dumps.schema import Offence
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose.census import invalid_defect, lost_pages
from gemma4_triage.diagnose.evidence import cell, event, readable_events, tensor_or_none
from gemma4_triage.diagnose.incident import LEAK, Incident
from gemma4_triage.diagnose.where_wrong import Wrong, free_list_of_pool
from gemma4_triage.finding import Evidence

_POOLS = ("full", "swa")
_GIVEN = "swa_given"


def hand_out_wrong(dump: Dump) -> Wrong:
    """Return where the first bad slot of a hand-out comes from; no structure where the dump does not say."""
    bad = dump.manifest.offences[0] if dump.manifest.offences else None
    if bad is None or bad.table != "slots" or not 0 <= bad.column <= 1:
        return Wrong(None)
    call = _Call(dump, bad)
    return call.find() if call.is_known else Wrong(None)


def is_what_the_pool_gave(dump: Dump) -> bool | None:
    """Return whether the sliding-window pool gave the bad slot itself; False where the mapping has another.

    None where the dump does not say, and of a slot of the full pool, which no mapping stands behind.
    """
    given, slots, offences = tensor_or_none(dump, _GIVEN), tensor_or_none(dump, "slots"), dump.manifest.offences
    if not offences or offences[0].table != "slots" or offences[0].column != 1:
        return None
    row = offences[0].row
    if given is None or slots is None or given.shape != slots.shape[:1] or not 0 <= row < len(given):
        return None
    return int(given[row]) == int(slots[row, 1])


def mapping_since(dump: Dump) -> Wrong:
    """Return the mapping as wrong where a call that gives back finds another page there than it was written with.

    No structure where the latest call naming the slot had the same, or none did.
    """
    records, slots, page = readable_events(dump), tensor_or_none(dump, "slots"), dump.manifest.page_size or 1
    free = tensor_or_none(dump, "free_pages_swa")
    bad = dump.manifest.offences[0] if dump.manifest.offences else None
    if not records or bad is None or (bad.table, bad.column) != ("slots", 1) or slots is None or slots.ndim != 2:
        return Wrong(None)
    if not _gives_back(records[-1]) or not 0 <= bad.row < len(slots):
        return Wrong(None)
    full = int(slots[bad.row, 0])
    named = ((number, own) for number, past in enumerate(records[:-1]) if (own := _peer(past, full)) is not None)
    number, own = max(named, default=(-1, 0))
    if number < 0 or _gives_back(records[number]) or own == bad.value or own <= 0:
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


def _gives_back(call: Mapping[str, Any]) -> bool:
    return str(call.get("call")).startswith("free")


def _is_release(past: Sequence[Mapping[str, Any]], number: int) -> bool:
    """Return whether a whole request was released by a call, or by one of the group that it ends.

    That one had ended, and a batch that goes on with it may be the fault.
    """
    named = set(_slots(past[number].get("full")))
    while number >= 0 and _gives_back(past[number]) and named & set(_slots(past[number].get("full"))):
        if past[number].get("site") == "release_kv_cache":
            return True
        number -= 1
    return False


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
        pool = _POOLS[bad.column]
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
    named = (n for n in reversed(range(len(past))) if page in {slot // size for slot in _slots(past[n].get(pool))})
    number = next((n for n in named if pool == "swa" or not str(past[n].get("call")).startswith("free_swa")), None)
    if number is None or not _gives_back(past[number]):
        return None
    at, asked = _request_of(events[-1], bad.row), events[-1].get("last_loc")
    decode = next((one for one in reversed(past) if one.get("call") == "alloc_decode"), {})
    goes_on = at is not None and isinstance(asked, list) and at < len(asked) and asked[at] >= 0
    newest = goes_on and bad.value % size > 0 and _slots(decode.get("full")) == asked
    proof = event(dump, number, "site", f"what gave page {page} of the {pool} pool back, which has a new slot since")
    newest = newest and not _is_release(past, number)
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
    records, page = readable_events(dump), dump.manifest.page_size or 1
    free = [tensor_or_none(dump, f"free_before_{pool}") for pool in _POOLS]
    if not records or not isinstance(records[-1].get("seq_lens"), list):
        return None
    call = records[-1]
    begins, ends = call.get("prefix_lens"), [int(end) for end in call["seq_lens"]]
    if not isinstance(begins, list) or len(begins) != len(ends):
        begins = [end - 1 for end in ends]
    asked = sum(-(-end // page) - -(-int(begin) // page) for begin, end in zip(begins, ends, strict=True))
    counts = [len(pages) for pages in free if pages is not None]
    return None if len(counts) < len(_POOLS) else min(counts) >= asked


def strayed_hand_out(incident: Incident) -> Dump | None:
    """Return the dump of a mapping to a free page that a hand-out of that very call made; None if there is none."""
    dump = incident.first(rule="swa-stale-mapping")
    if dump is None or ".alloc" not in dump.manifest.site:
        return None
    return dump if hand_out_wrong(dump).structure is Structure.ALLOCATION else None


def asked_wrong(dump: Dump) -> Wrong:
    """Return why a decode asked to continue from a slot that no request has, by the decode before it.

    There every request of the batch was a token shorter, and its last slot is known. Says nothing of another batch.
    """
    decodes = [record for record in readable_events(dump)[-2:] if record.get("call") == "alloc_decode"]
    if len(decodes) < 2 or not dump.manifest.offences:
        return Wrong(None)
    before, now = (record.get("seq_lens") for record in decodes)
    at, value = dump.manifest.offences[0].row, dump.manifest.offences[0].value
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
    last = _slots(decodes[0].get("full"))
    if at < len(last) and last[at] != value:
        said = event(dump, number, f"last_loc.{at}", f"the row's last slot; the decode before gave it {last[at]}")
        return Wrong(Structure.REQUEST_ROW, _invalid_slot(value), (said,))
    return Wrong(None)


def _defect_of_length(length: int, right: int, others: set[int]) -> Defect | None:
    if length <= 0:
        return Defect.NEGATIVE if length else Defect.ZERO
    if abs(length - right) == 1:
        return Defect.OFF_BY_ONE
    return Defect.FOREIGN if length in others else None


def _invalid_slot(slot: int) -> Defect:
    return Defect.ZERO if slot == 0 else Defect.NEGATIVE if slot < 0 else Defect.PAST_END


class _Call:
    """One hand-out: the page in question, what left the list, and what was returned."""

    def __init__(self, dump: Dump, bad: Offence) -> None:
        self._dump, self._bad = dump, bad
        self._pool, self._page_size = _POOLS[bad.column], dump.manifest.page_size or 1
        self._page = bad.value // self._page_size
        self._before, self._after = (self._list(name) for name in ("before", "pages"))
        slots = tensor_or_none(dump, "slots")
        self._slots = [] if slots is None or slots.ndim != 2 else slots.tolist()
        self._events = readable_events(dump)

    @property
    def is_known(self) -> bool:
        """Return whether the dump has the lists before and after the call."""
        return self._before is not None and self._after is not None

    def find(self) -> Wrong:
        """Hold the page against the lists, then each request's first slot against where the request continues."""
        before, after = self._before or [], self._after or []
        taken = Counter(before) - Counter(after)
        if is_what_the_pool_gave(self._dump) is False:
            # The mapping was written after the pool's own allocator had given another slot.
            own = int(tensor_or_none(self._dump, _GIVEN)[self._bad.row])
            proof = (cell(self._dump, _GIVEN, (self._bad.row,), "what the sliding-window pool itself gave"),)
            return Wrong(Structure.SWA_MAPPING, self._defect(self._page, [own // self._page_size], taken), proof)
        given = {row[self._bad.column] // self._page_size for row in self._slots}
        unreturned = sorted(page for page in taken if page not in given)
        if unreturned:
            proof = self._on_list(
                "before", before, unreturned[0], "the call took it off the list, and did not return it"
            )
            return Wrong(Structure.ALLOCATION, self._defect(self._page, unreturned, taken), proof)
        strayed = [self._of_request(*one, taken) for one in self._strayed()]
        if strayed:
            # What continues a page does not come off a list, even if the call took this page off for another request.
            alike = all(one.defect is strayed[0].defect for one in strayed)
            return strayed[0] if alike else replace(strayed[0], defect=None)
        shifted = next(self._shifted(), None)
        if shifted is not None:
            return shifted
        if taken[self._page]:
            proof = self._on_list("before", before, self._page, "the list had it before the call")
            return Wrong(free_list_of_pool(self._pool), self._defect_of_list(before), proof)
        if self._pool != "full" or self._expected(self._bad.row, 0) is not None:
            # The call did what it was asked: whoever named that slot is wrong, or two did.
            return Wrong(None)
        proof = ()
        if self._page in after:
            proof = self._on_list("pages", after, self._page, "the page is on the list after the call too")
        return Wrong(Structure.ALLOCATION, self._defect(self._page, [], taken), proof)

    def _strayed(self) -> Iterator[tuple[int, int, int]]:
        """Yield column, first row and right page of each request that does not continue where its last slot is."""
        for column in (self._bad.column, 1 - self._bad.column):
            for _, first, end in _spans(self._call):
                right = self._expected(first, column) if first < min(end, len(self._slots)) else None
                if right is not None and right != self._slots[first][column] // self._page_size:
                    yield column, first, right

    def _shifted(self) -> Iterator[Wrong]:
        """Yield what a request was given that continues in the right page, and not behind its last slot.

        Of the sliding-window pool the mapping is wrong where it has another last slot than the request was given.
        """
        for column in (self._bad.column, 1 - self._bad.column):
            for _, first, end in _spans(self._call):
                last = self._last_slot(first, column) if first < min(end, len(self._slots)) else None
                if last is None or self._slots[first][column] == last + 1:
                    continue
                slot, structure = self._slots[first][column], Structure.ALLOCATION
                if column == 1:
                    before = tensor_or_none(self._dump, "swa_before")
                    if before is None or before.ndim != 1 or first >= before.shape[0]:
                        continue
                    structure = structure if int(before[first]) == last else Structure.SWA_MAPPING
                    if structure is Structure.SWA_MAPPING and (freed := self._given_back(first)) is not None:
                        yield freed
                        continue
                # The slot before the right one is the last, which the request has already.
                defect = Defect.OFF_BY_ONE if abs(slot - last - 1) == 1 else Defect.DUPLICATE if slot <= last else None
                told = event(
                    self._dump, len(self._events) - 1, "site", f"a request continues at slot {last + 1}, not at {slot}"
                )
                yield Wrong(structure, defect, (told,))

    def _given_back(self, first: int) -> Wrong | None:
        """Return the free that named the last slot of the request at row `first`, if nothing handed it out since.

        It came too early if that slot was the request's newest, by the decode before. Where calls have the request go
        on behind it, and it is at its place, the length is wrong. Else no structure is named: a row that leads back to
        an old slot looks alike.
        """
        at, asked = _request_of(self._call, first), self._call.get("last_loc")
        if at is None or not isinstance(asked, list) or at >= len(asked):
            return None
        past = self._events[:-1]
        if (length := self._length_of_before(at, asked[at])) is not None:
            return length
        number = next((n for n in reversed(range(len(past))) if asked[at] in _slots(past[n].get("full"))), None)
        if number is None or not _gives_back(past[number]):
            return None
        decode = next((one for one in reversed(past) if one.get("call") == "alloc_decode"), {})
        newest = _slots(decode.get("full")) == asked and not _is_release(past, number)
        proof = event(self._dump, number, "site", "what gave back the SWA page of the request's last slot")
        return Wrong(Structure.FREE_CALL if newest else None, Defect.EARLY if newest else None, (proof,))

    def _length_of_before(self, at: int, slot: int) -> Wrong | None:
        """Return the length as wrong where a call gave `slot` for this very place, and more of the request behind it.

        The row has there what it was given, and the request has gone on: only the length leads back. A free of the full
        page since then may have ended that request.
        """
        lengths, went_on = self._call.get("seq_lens"), False
        if not isinstance(lengths, list) or at >= len(lengths) or self._call.get("call") != "alloc_decode":
            return None
        for number in reversed(range(len(self._events) - 1)):
            one = self._events[number]
            given = _slots(one.get("full"))
            if _gives_back(one):
                of_page = slot // self._page_size in {other // self._page_size for other in given}
                if of_page and not str(one.get("call")).startswith("free_swa"):
                    return None
                continue
            last = one.get("last_loc")
            went_on |= isinstance(last, list) and slot in last
            row = given.index(slot) if slot in given else -1
            span = next(((of, begin, end) for of, begin, end in _spans(one) if begin <= row < end), None)
            if span is None:
                continue
            of, _, end = span
            if one["seq_lens"][of] - end + row != lengths[at] - 2 or not (went_on or row < end - 1):
                return None
            others = {count for other, count in enumerate(lengths) if other != at}
            proof = event(self._dump, number, "site", f"what gave the request slot {slot}, behind which it has gone on")
            return Wrong(Structure.BATCH_LENGTHS, Defect.FOREIGN if lengths[at] in others else Defect.STALE, (proof,))
        return None

    def _of_request(self, column: int, first: int, right: int, taken: Counter[int]) -> Wrong:
        page = self._slots[first][column] // self._page_size
        told = event(
            self._dump, len(self._events) - 1, "site", f"a request continues from page {right}, not from {page}"
        )
        if column == 0:
            return Wrong(Structure.ALLOCATION, self._defect(page, [right], taken, 0, first), (told,))
        # A mapping that led the allocator on, or a wrong result: by what the mapping has for the last slot.
        before = tensor_or_none(self._dump, "swa_before")
        if before is None or before.ndim != 1 or first >= before.shape[0]:
            return Wrong(None)
        structure = Structure.ALLOCATION if int(before[first]) // self._page_size == right else Structure.SWA_MAPPING
        of_last = cell(self._dump, "swa_before", (first,), "what the mapping has for the request's last slot")
        if structure is Structure.SWA_MAPPING and (freed := self._given_back(first)) is not None:
            return Wrong(freed.structure, freed.defect, (told, of_last, *freed.proof))
        return Wrong(structure, self._defect(page, [right], taken, 1, first), (told, of_last))

    def _defect(
        self, page: int, right: list[int], taken: Counter[int], column: int | None = None, first: int | None = None
    ) -> Defect | None:
        column = self._bad.column if column is None else column
        if not self._is_of_pool(page, column):
            return invalid_defect(page)
        if any(abs(one - page) == 1 for one in right):
            return Defect.OFF_BY_ONE
        same = column == self._bad.column
        if (same and taken[page]) or sum(page == row[column] // self._page_size for row in self._firsts()) > 1:
            return Defect.DUPLICATE
        if page in (self._list("pages", column) or ()):
            return Defect.STALE
        own, is_all = self._own_pages(self._bad.row if first is None else first, column)
        return Defect.DUPLICATE if page in own else Defect.FOREIGN if is_all else None

    def _own_pages(self, row: int, column: int) -> tuple[set[int], bool]:
        """Return the pages that calls gave the request of a row, back to its first token; and whether that is all."""
        own: set[int] = set()
        at, call, past = _request_of(self._call, row), self._call, len(self._events) - 1
        while at is not None:
            asked = call.get("last_loc")
            if not isinstance(asked, list) or at >= len(asked) or not isinstance(asked[at], int):
                return own, False
            if asked[at] < 0:
                return own, True
            found = next((n for n in reversed(range(past)) if asked[at] in _slots(self._events[n].get("full"))), None)
            if found is None or _gives_back(self._events[found]):
                return own, False
            call, past = self._events[found], found
            at = _request_of(call, _slots(call.get("full")).index(asked[at]))
            given = _slots(call.get("swa" if column else "full"))
            span = next(((begin, end) for number, begin, end in _spans(call) if number == at), (0, 0))
            own |= {slot // self._page_size for slot in given[slice(*span)]}
        return own, False

    def _firsts(self) -> Iterator[list[int]]:
        """Yield the first slot of each request of the call."""
        for _, first, end in _spans(self._call):
            if first < min(end, len(self._slots)):
                yield self._slots[first]

    def _defect_of_list(self, before: list[int]) -> Defect:
        if not self._is_of_pool(self._page, self._bad.column):
            return invalid_defect(self._page)
        return Defect.DUPLICATE if before.count(self._page) > 1 else Defect.FOREIGN

    def _is_of_pool(self, page: int, column: int) -> bool:
        """Return whether the pool has such a page; the extents count page 0."""
        pages = self._dump.manifest.extents.get(f"pages_{_POOLS[column]}_pool")
        return page > 0 and (pages is None or page < pages)

    def _list(self, name: str, column: int | None = None) -> list[int] | None:
        pool = self._pool if column is None else _POOLS[column]
        values = tensor_or_none(self._dump, f"free_{name}_{pool}")
        return None if values is None or values.ndim != 1 else values.tolist()

    def _on_list(self, name: str, values: list[int], page: int, meaning: str) -> tuple[Evidence, ...]:
        return (cell(self._dump, f"free_{name}_{self._pool}", (values.index(page),), meaning),)

    @property
    def _call(self) -> Mapping[str, Any]:
        return self._events[-1] if self._events else {}

    def _expected(self, row: int, column: int) -> int | None:
        """Return the page in which the request of a row continues, by its last slot; None as of `_last_slot`."""
        slot = self._last_slot(row, column)
        return None if slot is None else slot // self._page_size

    def _last_slot(self, row: int, column: int) -> int | None:
        """Return the last slot of the request of a row.

        None where the request has none, begins a page, or the events do not say.
        """
        last_loc, at = self._call.get("last_loc"), _request_of(self._call, row)
        if at is None or not isinstance(last_loc, list) or at >= len(last_loc) or not isinstance(last_loc[at], int):
            return None
        slot = last_loc[at]
        if slot < 0 or (slot + 1) % self._page_size == 0:
            return None
        if column == 1:
            slot = next((swa for past in reversed(self._events[:-1]) if (swa := _peer(past, slot)) is not None), -1)
        return slot if slot >= 0 else None


def _request_of(call: Mapping[str, Any], row: int) -> int | None:
    """Return which request of a call the slot at `row` is of; None if the event does not say."""
    return next((at for at, start, end in _spans(call) if start <= row < end), None)


def _spans(call: Mapping[str, Any]) -> Iterator[tuple[int, int, int]]:
    """Yield each request of a call with its first row and the one behind its last."""
    ends, begins = call.get("seq_lens"), call.get("prefix_lens")
    if not isinstance(ends, list):
        return
    counts = [1] * len(ends)
    if isinstance(begins, list):
        counts = [max(int(end) - int(begin), 0) for end, begin in zip(ends, begins, strict=False)]
    row = 0
    for at, count in enumerate(counts):
        yield at, row, row + count
        row += count


def _peer(call: Mapping[str, Any], slot: int) -> int | None:
    """Return the SWA slot that a call gave a full slot; None if it is not among the call's."""
    full, swa = (_slots(call.get(name)) for name in ("full", "swa"))
    return dict(zip(full, swa, strict=False)).get(slot)


def _slots(runs: Any) -> list[int]:
    """Return the slots of runs, [first, how many] each."""
    pairs = [run for run in runs if isinstance(run, list) and len(run) == 2] if isinstance(runs, list) else []
    return [
        first + more for first, count in pairs if isinstance(first, int) for more in range(min(int(count), 1 << 16))
    ]
