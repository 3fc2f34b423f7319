"""Whether a wrong page came off a free list, or is what a hand-out was turned into: the lists before and after it.

| the page                                                       | is wrong               |
|----------------------------------------------------------------|------------------------|
| is of the mapping, and its own pool gave another               | the mapping            |
| is 0, and the free before named one that is on no list         | that free              |
| came in place of one that the call took off and did not return | what the call returned |
| continues a request, but not the page of its last slot         | what the call returned |
| ... of the sliding-window pool, where the mapping leads there  | the mapping            |
| ... and a free before named the slot that was its newest       | that free              |
| ... and calls have that request go on behind its last slot     | the length             |
| is the right one, and its slot is not behind the last one      | what the call returned |
| is one of those taken, whose slots are in a wrong order        | what the call returned |
| was on the list, and the call took it off                      | the list               |
| is of the full pool, on no list or still on one after the call | what the call returned |

Dumps without the lists before the call say nothing of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gemma4_dumps.reader import Dump
from gemma4_dumps.schema import Offence
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose.census import invalid_defect
from gemma4_triage.diagnose.evidence import cell, event, readable_events, tensor_or_none
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.recorded_calls import gives_back, is_release, request_at, slots_of, spans, swa_peer
from gemma4_triage.diagnose.where_wrong import Wrong, free_list_of_pool
from gemma4_triage.finding import Evidence

POOLS = ("full", "swa")
_SHOWN = 3
_FEWEST_APART = 3
"""Pages that stand equally far from where they belong, before that is no chance."""
_GIVEN = "swa_given"


def hand_out_wrong(dump: Dump) -> Wrong:
    """Return where the first bad slot of a hand-out comes from; no structure where the dump does not say."""
    bad = dump.manifest.offences[0] if dump.manifest.offences else None
    if bad is None or bad.table != "slots" or not 0 <= bad.column <= 1:
        return Wrong(None)
    call = _Call(dump, bad)
    return call.find() if call.is_known else Wrong(None)


def out_of_order(dump: Dump) -> Defect | None:
    """Return in which way the slots that a hand-out returned are in a wrong order, if they are."""
    bad = dump.manifest.offences[0] if dump.manifest.offences else None
    wrong = None if bad is None or bad.table != "slots" or not 0 <= bad.column <= 1 else _Call(dump, bad).displaced()
    return None if wrong is None else wrong.defect


def is_what_the_pool_gave(dump: Dump) -> bool | None:
    """Return whether the sliding-window pool gave the bad slot itself; False where the mapping has another.

    None where the dump does not say, and of a slot of the full pool, which no mapping stands behind.
    """
    given, slots = tensor_or_none(dump, _GIVEN), tensor_or_none(dump, "slots")
    row = _in_question(dump)
    return None if row is None or given is None or slots is None else int(given[row]) == int(slots[row, 1])


def _in_question(dump: Dump) -> int | None:
    """Return the row of the slot of the sliding-window pool that is wrong; None where the dump does not say.

    Of two slots in one page the later one is noticed, and the wrong one is that which the mapping led there.
    """
    given, slots, offences = tensor_or_none(dump, _GIVEN), tensor_or_none(dump, "slots"), dump.manifest.offences
    if not offences or (offences[0].table, offences[0].column) != ("slots", 1):
        return None
    row, page = offences[0].row, dump.manifest.page_size or 1
    if given is None or slots is None or slots.shape != (len(given), 2) or not 0 <= row < len(given):
        return None
    pairs = enumerate(zip(given.tolist(), slots[:, 1].tolist(), strict=True))
    led = [at for at, (own, has) in pairs if own != has and has // page == offences[0].value // page]
    return row if int(given[row]) != int(slots[row, 1]) or len(led) != 1 else led[0]


def led_elsewhere(dump: Dump) -> str:
    """Return by how many pages the mapping's entries of a hand-out are wrong, in words; "" if not all by as many."""
    given, slots, size = tensor_or_none(dump, _GIVEN), tensor_or_none(dump, "slots"), dump.manifest.page_size or 1
    if is_what_the_pool_gave(dump) is not False or given is None or slots is None:
        return ""
    wrong = [(own, has) for own, has in zip(given.tolist(), slots[:, 1].tolist(), strict=True) if own != has]
    apart = {has - own for own, has in wrong}
    if len(apart) != 1 or (by := apart.pop()) % size:
        return ""
    entries = "one slot that was" if len(wrong) == 1 else f"{len(wrong)} slots that were"
    pages = "a page" if abs(by) == size else f"{abs(by) // size} pages"
    own, has = wrong[0]
    return (
        f" It is the mapping: its entry of {entries} handed out is {pages} too {'high' if by > 0 else 'low'}, {has} "
        f"where the sliding-window pool gave {own}."
    )


def is_exchanged(dump: Dump) -> bool:
    """Return whether the mapping has the full slots of a hand-out at the numbers of their SWA slots, and not these."""
    given, slots, there = (tensor_or_none(dump, name) for name in (_GIVEN, "slots", "full_at_given"))
    if given is None or slots is None or there is None or slots.ndim != 2 or not len(slots):
        return False
    if not slots.shape[:1] == given.shape == there.shape:
        return False
    return there.tolist() == slots[:, 0].tolist() != given.tolist()


def goes_past_its_page(dump: Dump) -> bool:
    """Return whether a hand-out's first bad slot is the one behind a request's last, which had filled its page.

    A new page was due there, and the call took none off the list for it.
    """
    bad, records = dump.manifest.offences[0] if dump.manifest.offences else None, readable_events(dump)
    if bad is None or (bad.table, bad.column) != ("slots", 0) or not records:
        return False
    at, asked, page = request_at(records[-1], bad.row), records[-1].get("last_loc"), dump.manifest.page_size or 1
    lists = [tensor_or_none(dump, f"free_{name}_full") for name in ("before", "pages")]
    if at is None or not isinstance(asked, list) or at >= len(asked) or any(one is None for one in lists):
        return False
    taken = Counter(lists[0].tolist()) - Counter(lists[1].tolist())
    begins = records[-1].get("prefix_lens") or [length - 1 for length in records[-1].get("seq_lens") or ()]
    was_full = at < len(begins) and begins[at] % page == 0
    return (
        page > 1 and was_full and asked[at] + 1 == bad.value and not bad.value % page and not taken[bad.value // page]
    )


def pages_further_on(dump: Dump) -> int | None:
    """Return by how many places all pages that a hand-out opened stand behind those that it took off the full list.

    None where they do not all stand as far, some are among those, or there are too few to tell that by.
    """
    lists = [tensor_or_none(dump, f"free_{name}_full") for name in ("before", "pages")]
    slots, size = tensor_or_none(dump, "slots"), dump.manifest.page_size or 1
    if slots is None or slots.ndim != 2 or any(one is None or one.ndim != 1 for one in lists):
        return None
    before, count = lists[0].tolist(), len(lists[0]) - len(lists[1])
    opened = [slot // size for slot in slots[:, 0].tolist() if slot % size == 0]
    if len(opened) != count or count < _FEWEST_APART or not set(opened) <= set(before):
        return None
    apart = {before.index(page) - at for at, page in enumerate(opened)}
    return next(iter(apart)) if len(apart) == 1 and min(apart) > 0 else None


def strayed_hand_out(incident: Incident) -> Dump | None:
    """Return the dump of a mapping to a free page that a hand-out of that very call made; None if there is none."""
    dump = incident.first(rule="swa-stale-mapping")
    if dump is None or ".alloc" not in dump.manifest.site:
        return None
    return dump if hand_out_wrong(dump).structure is Structure.ALLOCATION else None


class _Call:
    """One hand-out: the page in question, what left the list, and what was returned."""

    def __init__(self, dump: Dump, bad: Offence) -> None:
        self._dump, self._bad = dump, bad
        self._pool, self._page_size = POOLS[bad.column], dump.manifest.page_size or 1
        self._page = bad.value // self._page_size
        self._before, self._after = (self._list(name) for name in ("before", "pages"))
        slots = tensor_or_none(dump, "slots")
        self._slots = [] if slots is None or slots.shape[1] != len(POOLS) else slots.tolist()
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
            row = _in_question(self._dump) or 0
            own = int(tensor_or_none(self._dump, _GIVEN)[row])
            proof = (cell(self._dump, _GIVEN, (row,), "what the sliding-window pool itself gave"),)
            if is_exchanged(self._dump):
                return Wrong(Structure.SWA_MAPPING, Defect.SWAPPED, proof)
            full, has = self._slots[row]
            defect = self._defect(self._page, [own // self._page_size], taken)
            stale = next((peer for past in reversed(self._events[:-1]) if (peer := swa_peer(past, full) or 0) > 0), 0)
            return Wrong(Structure.SWA_MAPPING, Defect.STALE if stale == has > 0 else defect, proof)
        given = {row[self._bad.column] // self._page_size for row in self._slots}
        unreturned = sorted(page for page in taken if page not in given)
        if unreturned:
            proof = self._on_list(
                "before", before, unreturned[0], "the call took it off the list, and did not return it"
            )
            if len(unreturned) > 1:
                return Wrong(Structure.ALLOCATION, None, proof)
            return Wrong(Structure.ALLOCATION, self._defect(self._page, unreturned, taken), proof)
        if (displaced := self.displaced()) is not None:
            return displaced
        if (exchanged := self._exchanged(before, taken)) is not None:
            return exchanged
        strayed = [self._of_request(*one, taken) for one in self._strayed()]
        if strayed:
            # What continues a page does not come off a list, even if the call took this page off for another request.
            alike = all(one.defect is strayed[0].defect for one in strayed)
            defect = strayed[0].defect if alike else None
            return replace(strayed[0], defect=Defect.OTHER_SPACE if self._is_untranslated() else defect)
        shifted = next(self._shifted(), None)
        if shifted is not None:
            return shifted
        if taken[self._page]:
            proof = self._on_list("before", before, self._page, "the list had it before the call")
            if (freed := self._freed_in_its_place(before)) is not None:
                return replace(freed, proof=(*proof, *freed.proof))
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
            for _, first, end in spans(self._call):
                right = self._expected(first, column) if first < min(end, len(self._slots)) else None
                if right is not None and right != self._slots[first][column] // self._page_size:
                    yield column, first, right

    def _is_untranslated(self) -> bool:
        """Return whether all that stray have the full pool's own slot numbers in the sliding-window pool."""
        return all(column == 1 and len(set(self._slots[first])) == 1 for column, first, _ in self._strayed())

    def displaced(self) -> Wrong | None:
        """Return the result as wrong where an extend's slots are all there, and not at their tokens' places of a page.

        A token's slot has the place in its page that the token has in its sequence. Off by one if each token has the
        slot of the one beside it, the last one's first or the first one's last.
        """
        begins, size, full = self._call.get("prefix_lens"), self._page_size, [row[0] for row in self._slots]
        if not isinstance(begins, list) or size == 1 or not full or any(len(row) != 2 for row in self._slots):
            return None
        of_spans = list(spans(self._call))
        if not of_spans or of_spans[-1][2] != len(full) or any(at >= len(begins) for at, _, _ in of_spans):
            return None
        places = [begins[at] + one for at, first, end in of_spans for one in range(end - first)]
        if all(slot % size == place % size for slot, place in zip(full, places, strict=True)):
            return None
        for by in (1, -1):
            back = full[by:] + full[:by]
            if all(slot % size == place % size for slot, place in zip(back, places, strict=True)):
                told = event(self._dump, len(self._events) - 1, "site", "each token was given its neighbour's slot")
                return Wrong(Structure.ALLOCATION, Defect.OFF_BY_ONE, (told,))
        if Counter(slot % size for slot in full) != Counter(place % size for place in places):
            return None
        told = event(self._dump, len(self._events) - 1, "site", "slots are not at their tokens' places in a page")
        return Wrong(Structure.ALLOCATION, Defect.SWAPPED, (told,))

    def _exchanged(self, before: list[int], taken: Counter[int]) -> Wrong | None:
        """Return a decode's result as wrong where each of its slots is right, and of another request of the batch."""
        column, size = self._bad.column, self._page_size
        opened = [page for page in before if taken[page]]
        lasts = [self._last_slot(first, column) for _, first, _ in spans(self._call)]
        if self._dump.manifest.scalars.get("need_sort"):
            # The call sorts the list first, so that what is shown of it is not what it took.
            return None
        if "prefix_lens" in self._call or len(lasts) != len(self._slots) or lasts.count(None) != len(opened):
            return None
        pages = iter(opened)
        right = [next(pages) * size if last is None else last + 1 for last in lasts]
        given = [row[column] for row in self._slots]
        wrong = [at for at, slot in enumerate(given) if slot != right[at]]
        if not wrong or Counter(given) != Counter(right):
            return None
        mapped = tensor_or_none(self._dump, "swa_before") if column == 1 else None
        if column == 1 and (mapped is None or mapped.ndim != 1 or len(mapped) < len(given)):
            return None
        if mapped is not None and any(lasts[at] not in (None, int(mapped[at])) for at in wrong):
            # The pool went on from what the map had.
            return None
        proof = tuple(
            cell(self._dump, "slots", (at, column), f"what the request was given whose slot is {right[at]}")
            for at in wrong[:_SHOWN]
        )
        return Wrong(Structure.ALLOCATION, Defect.SWAPPED, proof)

    def _shifted(self) -> Iterator[Wrong]:
        """Yield what a request was given that continues in the right page, and not behind its last slot.

        Of the sliding-window pool the mapping is wrong where it has another last slot than the request was given.
        """
        for column in (self._bad.column, 1 - self._bad.column):
            for _, first, end in spans(self._call):
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
        at, asked = request_at(self._call, first), self._call.get("last_loc")
        if at is None or not isinstance(asked, list) or at >= len(asked):
            return None
        past = self._events[:-1]
        if (length := self._length_of_before(at, asked[at])) is not None:
            return length
        number = next((n for n in reversed(range(len(past))) if asked[at] in slots_of(past[n].get("full"))), None)
        if number is None or not gives_back(past[number]):
            return None
        decode = next((one for one in reversed(past) if one.get("call") == "alloc_decode"), {})
        newest = slots_of(decode.get("full")) == asked and not is_release(past, number)
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
            given = slots_of(one.get("full"))
            if gives_back(one):
                of_page = slot // self._page_size in {other // self._page_size for other in given}
                if of_page and not str(one.get("call")).startswith("free_swa"):
                    return None
                continue
            last = one.get("last_loc")
            went_on |= isinstance(last, list) and slot in last
            row = given.index(slot) if slot in given else -1
            span = next(((of, begin, end) for of, begin, end in spans(one) if begin <= row < end), None)
            if span is None:
                continue
            of, _, end = span
            if one["seq_lens"][of] - end + row != lengths[at] - 2 or not (went_on or row < end - 1):
                return None
            others = {count for other, count in enumerate(lengths) if other != at}
            proof = event(self._dump, number, "site", f"what gave the request slot {slot}, behind which it has gone on")
            return Wrong(Structure.BATCH_LENGTHS, Defect.FOREIGN if lengths[at] in others else Defect.STALE, (proof,))
        return None

    def _freed_in_its_place(self, before: list[int]) -> Wrong | None:
        """Return the free behind which nothing was handed out, if none of the SWA pages that it named is on the list.

        That list is longer by it, and has page 0.
        Its own reading of the mapping gave 0 for them; the probe's, before the free, gave the pages.
        """
        number = len(self._events) - 2
        while number >= 0 and not gives_back(one := self._events[number]):
            if one.get("free_before") != one.get("free_after"):
                return None
            number -= 1
        one = self._events[number] if number >= 0 else {}
        counts: list[Any] = [one.get(name) for name in ("free_before", "free_after")]
        if self._page or self._bad.column != 1 or not gives_back(one):
            return None
        if not all(isinstance(two, list) and len(two) == 2 for two in counts) or counts[0][1] >= counts[1][1]:
            return None
        named = {slot // self._page_size for slot in slots_of(one.get("swa"))} - {0}
        if not named or named & set(before):
            return None
        told = event(self._dump, number, "call", "the free before it: the list has none of the SWA pages that it named")
        pages = event(self._dump, number, "swa.0.0", "the first slot of those, by the mapping before that free")
        return Wrong(Structure.FREE_CALL, Defect.ZERO, (told, pages))

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
        at, call, past = request_at(self._call, row), self._call, len(self._events) - 1
        while at is not None:
            asked = call.get("last_loc")
            if not isinstance(asked, list) or at >= len(asked) or not isinstance(asked[at], int):
                return own, False
            if asked[at] < 0:
                return own, True
            found = next((n for n in reversed(range(past)) if asked[at] in slots_of(self._events[n].get("full"))), None)
            if found is None or gives_back(self._events[found]):
                return own, False
            call, past = self._events[found], found
            at = request_at(call, slots_of(call.get("full")).index(asked[at]))
            given = slots_of(call.get("swa" if column else "full"))
            span = next(((begin, end) for number, begin, end in spans(call) if number == at), (0, 0))
            own |= {slot // self._page_size for slot in given[slice(*span)]}
        return own, False

    def _firsts(self) -> Iterator[list[int]]:
        """Yield the first slot of each request of the call."""
        for _, first, end in spans(self._call):
            if first < min(end, len(self._slots)):
                yield self._slots[first]

    def _defect_of_list(self, before: list[int]) -> Defect:
        if not self._is_of_pool(self._page, self._bad.column):
            return invalid_defect(self._page)
        return Defect.DUPLICATE if before.count(self._page) > 1 else Defect.FOREIGN

    def _is_of_pool(self, page: int, column: int) -> bool:
        """Return whether the pool has such a page; the extents count page 0."""
        pages = self._dump.manifest.extents.get(f"pages_{POOLS[column]}_pool")
        return page > 0 and (pages is None or page < pages)

    def _list(self, name: str, column: int | None = None) -> list[int] | None:
        pool = self._pool if column is None else POOLS[column]
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
        last_loc, at = self._call.get("last_loc"), request_at(self._call, row)
        if at is None or not isinstance(last_loc, list) or at >= len(last_loc) or not isinstance(last_loc[at], int):
            return None
        slot = last_loc[at]
        if slot < 0 or (slot + 1) % self._page_size == 0:
            return None
        if column == 1:
            slot = next((swa for past in reversed(self._events[:-1]) if (swa := swa_peer(past, slot)) is not None), -1)
        return slot if slot >= 0 else None
