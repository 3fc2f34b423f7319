"""The calls of an allocator dump again, one by one, on the reference allocator: the first that breaks an invariant.

Needs neither torch nor a GPU. What the dump's probe concluded is compared with what comes out, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gemma4_dumps.allocator_calls import (
    FIRST_CALL,
    FREES,
    NEED_SORT,
    START_LISTS,
    START_MAPPING,
    SWA_FREES,
    AllocatorCall,
    allocator_calls,
)
from gemma4_dumps.errors import DumpUnreadable
from gemma4_dumps.reader import Dump
from gemma4_dumps.schema import Record
from gemma4_dumps.wording import number_of
from gemma4_triage.errors import EnvironmentCannot, NothingChecked
from gemma4_triage.replay.reference_allocator import ReferenceAllocator, expand
from gemma4_triage.replay.reference_pool import FREE, SWA, USED, Broken, Pool

RULES = (
    "swa-alloc-range",
    "swa-alloc-overlap",
    "swa-free-range",
    "swa-double-free",
    "swa-stale-mapping",
    "swa-mapping-alias",
    "swa-lost-pages",
)
MAX_PAGES, MAX_SLOTS, MAX_FREE, MAX_WORK = 2**24, 2**22, 2**21, 2**30
"""Of a pool; named by all calls together, a restored state counting as all pages; on each list of the state that they
begin with; calls times pages on those lists.
"""
_PAGES_SHOWN = 32


class PageChange(Record):
    """A page that the first failing call names. handed_out, given_back: the latest call that did so before it."""

    pool: str
    page: int
    before: str
    after: str
    handed_out: int | None = None
    given_back: int | None = None


class BrokenInvariant(Record):
    """An invariant that does not hold after a call. pages: of `pool`, at most 32; page_count: how many there are."""

    invariant: str
    pool: str
    pages: tuple[int, ...]
    page_count: int
    text: str


class ReplayedCall(Record):
    """One call as it went. asked, gave: in words. free: tokens of the full and the SWA pool after it."""

    number: int
    call: str
    site: str | None
    step: int | None
    asked: str
    gave: str
    free: tuple[int, int] | None
    broken: tuple[BrokenInvariant, ...] = ()


class AllocatorReplay(Record):
    """The document of `replay` of an allocator dump.

    Attributes:
        start_known: Whether the state before the first call is in the dump; without it only what the calls themselves
            settle is judged.
        first: Number of the call after which an invariant fails first; -1 if the state before the first call fails
            already.
        later: Failing calls after it.
        compared: Hand-outs whose very slots the reference could foretell.
        exact: How many of those were as foretold.
        agreement: Whether the dump's own verdict comes out: "agrees", "disagrees" or "cannot be judged".
        because: Why so.
    """

    dump: str
    rule: str
    verdict: str
    site: str
    summary: str
    page_size: int
    pages: tuple[int, int]
    start_known: bool
    in_use_at_start: tuple[int, int] | None
    calls_before: int
    calls: tuple[ReplayedCall, ...]
    at_start: tuple[BrokenInvariant, ...]
    first: int | None
    request_slot: int | None
    changes: tuple[PageChange, ...]
    later: int
    compared: int
    exact: int
    agreement: str
    because: str
    notes: tuple[str, ...]

    @property
    def fine(self) -> bool:
        """No invariant fails."""
        return self.first is None

    @property
    def first_call(self) -> ReplayedCall | None:
        return next((call for call in self.calls if call.number == self.first), None)

    @property
    def first_broken(self) -> tuple[BrokenInvariant, ...]:
        """What fails first."""
        return self.at_start or (self.first_call.broken if self.first_call else ())


@dataclass
class _Touched:
    """The latest calls that handed a page out and took it back, by pool and page."""

    handed_out: dict[tuple[str, int], int]
    given_back: dict[tuple[str, int], int]


def replay_allocator(dump: Dump) -> AllocatorReplay:
    """Apply every call of `dump` to the reference allocator.

    Raises:
        NothingChecked: the dump has no calls.
        EnvironmentCannot: it names more pages or slots than are replayed.
        DumpError: it cannot be read, or contradicts itself.
    """
    manifest = dump.manifest
    calls = list(allocator_calls(dump))
    if not calls:
        raise NothingChecked(
            f"this dump of {manifest.rule} holds no calls to replay",
            "dumps that the guards write now hold them; gemma4-triage dumps show has what this one holds",
        )
    _in_order(calls)
    pair, at_start, notes = _begin(dump, calls)
    in_use = None if not pair.known else (pair.full.state.count(USED) - 1, pair.swa.state.count(USED) - 1)
    touched = _Touched({}, {})
    replayed: list[ReplayedCall] = []
    first, changes, budget = -1 if at_start else None, (), MAX_SLOTS
    listed = sum(len(pool.free or ()) + len(pool.released) for pool in (pair.full, pair.swa))
    if len(calls) * listed > MAX_WORK:
        raise EnvironmentCannot(f"too large to replay: {len(calls)} calls on lists of {listed} free pages")
    for call in calls:
        full, swa = _slots(call, budget)
        budget -= len(full) + (pair.full.pages + pair.swa.pages if call.call == "restore_state" else 0)
        pages = _pages_named(call, full, swa, pair.page_size)
        before = [_state(pair, *page) for page in pages]
        broken = pair.apply(call, full, swa)
        replayed.append(_replayed(call, full, swa, broken))
        if broken and first is None:
            first = call.number
            changes = _changes(pair, touched, pages, before, broken)
        _touch(touched, call, pages)
    if first is None and (apart := _apart_at_the_end(dump, pair)):
        first = calls[-1].number
        replayed[-1] = replayed[-1].model_copy(update={"broken": tuple(map(_record, apart))})
    if manifest.dropped.events and pair.known:
        earlier = number_of(calls[0].number, "earlier call")
        notes.append(f"{earlier} of this allocator went by before the state that the dump begins with")
    agreement, because = _agreement(dump, calls[-1], replayed, at_start, pair)
    failing = sum(bool(call.broken) for call in replayed)
    return AllocatorReplay(
        dump=manifest.dump_id,
        rule=manifest.rule,
        verdict=manifest.verdict,
        site=manifest.site,
        summary=manifest.summary,
        page_size=pair.page_size,
        pages=(pair.full.pages, pair.swa.pages),
        start_known=pair.known,
        in_use_at_start=in_use,
        calls_before=calls[0].number,
        calls=tuple(replayed),
        at_start=tuple(map(_record, at_start)),
        first=first,
        request_slot=_request_slot(dump) if first == calls[-1].number else None,
        changes=changes,
        later=failing - (0 if first in (None, -1) else 1),
        compared=pair.compared,
        exact=pair.exact,
        agreement=agreement,
        because=because,
        notes=tuple(notes),
    )


def _in_order(calls: Sequence[AllocatorCall]) -> None:
    for line, (one, other) in enumerate(pairwise(calls), 2):
        if other.number != one.number + 1:
            raise DumpUnreadable(f"events.jsonl line {line} is call {other.number}, after call {one.number}")


def _begin(dump: Dump, calls: Sequence[AllocatorCall]) -> tuple[ReferenceAllocator, list[Broken], list[str]]:
    """Return the reference before the first call, what is wrong with that state, and what is not known of it."""
    manifest, first = dump.manifest, calls[0]
    page = manifest.page_size
    full_pages, swa_pages = (manifest.extents.get(f"pages_{pool}_pool", 0) - 1 for pool in ("full", "swa"))
    if page is None or page < 1 or min(full_pages, swa_pages) < 1:
        raise DumpUnreadable("the manifest lacks the page size or the pools' pages, which a replay of calls needs")
    if max(full_pages, swa_pages, page) > MAX_PAGES:
        pools = f"{full_pages} full and {swa_pages} SWA pages of {page} slots"
        raise EnvironmentCannot(f"too large to replay: {pools}; at most {MAX_PAGES} of each")
    need_sort, begins = manifest.scalars.get(NEED_SORT), manifest.scalars.get(FIRST_CALL)
    if not isinstance(need_sort, bool | None):
        raise DumpUnreadable(f"the dump contradicts itself: need_sort is {need_sort!r:.40}, neither true nor false")
    if isinstance(begins, int) and begins > first.number:
        raise DumpUnreadable(f"the dump contradicts itself: its first call is {begins}, and it holds {first.number}")
    if isinstance(begins, int) and manifest.dropped.events < first.number - begins:
        missing = f"calls {begins} to {first.number - 1} are missing"
        raise DumpUnreadable(f"the dump contradicts itself: {missing}, and {manifest.dropped.events} were dropped")
    pair = ReferenceAllocator(full_pages, swa_pages, page, need_sort is True)
    if begins != first.number:
        return pair, [], ["the first calls were cut to fit the dump, and with them the state that they begin with"]
    if lost := _lost_tensors(dump):
        return pair, [], [f"the state that the calls begin with is not whole: {', '.join(lost)} was cut or is missing"]
    lists = [list(expand(_start_runs(dump, name))) for name in START_LISTS]
    entries = _integers(dump, START_MAPPING, 2).tolist()
    return pair, pair.start(lists, [(slot, peer) for slot, peer in entries], _unwritten(calls, page)), []


def _unwritten(calls: Sequence[AllocatorCall], page_size: int) -> set[int]:
    """Return full pages that a mapping write names before any other call does.

    HiCache takes them from the inner allocators, which are not recorded, and writes their entries afterwards.
    """
    unwritten: set[int] = set()
    named: set[int] = set()
    budget = MAX_SLOTS
    for call in calls:
        full, _ = _slots(call, budget)
        budget -= len(full)
        pages = {slot // page_size for slot in full}
        if call.call == "set_full_to_swa_mapping":
            unwritten |= pages - named
        named |= pages
    return unwritten


def _lost_tensors(dump: Dump) -> list[str]:
    manifest = dump.manifest
    return [
        name
        for name in (*START_LISTS, START_MAPPING)
        if name not in manifest.tensors or manifest.tensors[name].truncated_from_shape is not None
    ]


def _start_runs(dump: Dump, name: str) -> list[list[int]]:
    runs = _integers(dump, name, 3)
    if runs.size and (runs[:, 1].min() < 1 or not np.isin(runs[:, 2], (0, 1)).all()):
        raise DumpUnreadable(f"{name} holds what is no run: a start, a count and a step of 0 or 1")
    # As Python's integers: counts of a damaged file may not add up in 64 bits.
    if (count := sum(runs[:, 1].tolist())) > MAX_FREE:
        raise EnvironmentCannot(f"too large to replay: {name} has {count} pages; at most {MAX_FREE}")
    return [[start, length, *([] if step else [0])] for start, length, step in runs.tolist()]


def _integers(dump: Dump, name: str, columns: int) -> np.ndarray:
    values = dump.tensor(name)
    if values.dtype.kind != "i" or values.ndim != 2 or values.shape[1] != columns:
        raise DumpUnreadable(f"{name} is {values.dtype}{list(values.shape)}, and {columns} columns of integers are due")
    if values.shape[0] > MAX_FREE:
        raise EnvironmentCannot(f"too large to replay: {name} has {values.shape[0]} rows; at most {MAX_FREE}")
    return values


def _slots(call: AllocatorCall, budget: int) -> tuple[list[int], list[int]]:
    """Return the full and SWA slots that a call names, as many each.

    Raises:
        EnvironmentCannot: they are more than `budget`.
        DumpUnreadable: its lists do not fit together.
    """
    lists = (call.full, call.swa, *(call.left or ()), *(call.lists or ()))
    counts = [sum(run[1] for run in runs or ()) for runs in lists]
    if max(counts) > budget:
        raise EnvironmentCannot(f"too large to replay: call {call.number} names {max(counts)} slots; {budget} are left")
    left = counts[2:4] if call.left is not None else (0, 0)
    lens = [len(values) for values in (call.prefix_lens, call.seq_lens, call.last_loc) if values is not None]
    if counts[0] != counts[1] or left[0] != left[1] or len(set(lens)) > 1:
        raise DumpUnreadable(f"call {call.number} contradicts itself: its lists belong together and differ in length")
    tail = call.swa_tail
    if tail is not None and call.full is not None and not 0 <= tail <= counts[0]:
        raise DumpUnreadable(f"call {call.number} contradicts itself: {tail} of its {counts[0]} slots have SWA slots")
    return list(expand(call.full or ())), list(expand(call.swa or ()))


def _pages_named(call: AllocatorCall, full: Sequence[int], swa: Sequence[int], page_size: int) -> list[tuple[str, int]]:
    pages = [("full", slot // page_size) for slot in full] if call.call not in SWA_FREES else []
    pages += [(SWA, slot // page_size) for slot in swa if slot > 0]
    return list(dict.fromkeys(pages))


def _state(pair: ReferenceAllocator, name: str, page: int) -> str:
    pool: Pool = pair.swa if name == SWA else pair.full
    if not 0 < page <= pool.pages:
        return "the dummy" if page == 0 else "no page of this pool"
    state = pool.of(page)
    if state == USED and name == SWA and page in pair.serves:
        return f"in use for full page {pair.serves[page]}"
    return "free" if state == FREE else "in use" if state == USED else "unknown"


def _changes(
    pair: ReferenceAllocator,
    touched: _Touched,
    pages: Sequence[tuple[str, int]],
    before: Sequence[str],
    broken: Sequence[Broken],
) -> tuple[PageChange, ...]:
    """Return the pages that a call breaks first, then the others that it names."""
    was = dict(zip(pages, before, strict=True))
    bad = [(one.pool, page) for one in broken for page in one.pages]
    lost = {(one.pool, page) for one in broken if one.verdict == "pool_leak" for page in one.pages}
    return tuple(
        PageChange(
            pool=name,
            page=page,
            before=was.get((name, page), "free" if (name, page) in lost else ""),
            after=_state(pair, name, page),
            handed_out=touched.handed_out.get((name, page)),
            given_back=touched.given_back.get((name, page)),
        )
        for name, page in [*dict.fromkeys([*bad, *pages])][:_PAGES_SHOWN]
    )


def _touch(touched: _Touched, call: AllocatorCall, pages: Sequence[tuple[str, int]]) -> None:
    if call.call.startswith("alloc"):
        touched.handed_out.update(dict.fromkeys(pages, call.number))
    elif call.call in (*FREES, *SWA_FREES, "free_group_end"):
        touched.given_back.update(dict.fromkeys(pages, call.number))


def _replayed(call: AllocatorCall, full: Sequence[int], swa: Sequence[int], broken: Sequence[Broken]) -> ReplayedCall:
    return ReplayedCall(
        number=call.number,
        call=call.call,
        site=call.site,
        step=call.step,
        asked=_asked(call, full),
        gave=_gave(call, full, swa),
        free=call.free_after,
        broken=tuple(map(_record, broken)),
    )


def _asked(call: AllocatorCall, full: Sequence[int]) -> str:
    if call.need is not None:
        return number_of(call.need, "token")
    if call.seq_lens is not None:
        begins = call.prefix_lens or [length - 1 for length in call.seq_lens]
        spans = [f"{begin} to {end}" for begin, end in zip(begins, call.seq_lens, strict=False)]
        return f"tokens {_few(spans)}"
    return f"full {_ranges(full)}{', when the group ends' if call.grouped else ''}" if full else ""


def _gave(call: AllocatorCall, full: Sequence[int], swa: Sequence[int]) -> str:
    if not call.returned:
        return "had not returned"
    if call.call.startswith("alloc"):
        return "nothing" if call.full is None else f"full {_ranges(full)}, swa {_ranges(swa)}"
    return f"swa {_ranges([slot for slot in swa if slot > 0]) or 'none'}" if full else ""


def _ranges(slots: Sequence[int]) -> str:
    found: list[list[int]] = []
    for slot in slots:
        if found and slot == found[-1][1] + 1:
            found[-1][1] = slot
        else:
            found.append([slot, slot])
    return _few([str(low) if low == high else f"{low}-{high}" for low, high in found])


def _few(parts: Sequence[str]) -> str:
    return ", ".join(parts[:4]) + (f" and {len(parts) - 4} more" if len(parts) > 4 else "")


def _record(broken: Broken) -> BrokenInvariant:
    return BrokenInvariant(
        invariant=broken.verdict,
        pool=broken.pool,
        pages=broken.pages[:_PAGES_SHOWN],
        page_count=len(broken.pages),
        text=broken.text,
    )


def _apart_at_the_end(dump: Dump, pair: ReferenceAllocator) -> list[Broken]:
    """Pages that are free by the dump's own lists and not by the calls, or the other way round."""
    found = []
    for pool in (pair.full, pair.swa):
        name = f"free_pages_{pool.name}"
        record = dump.manifest.tensors.get(name)
        if not pair.known or record is None or record.truncated_from_shape is not None:
            continue
        listed, told = set(dump.tensor(name).reshape(-1).tolist()), pool.free_pages()
        if apart := sorted(listed ^ told):
            text = (
                f"by the dump's list {len(listed)} {pool.name} pages are free and by the calls {len(told)}: "
                f"page {apart[0]} is the first of {len(apart)} that differ"
            )
            found.append(Broken("pool_leak", pool.name, tuple(apart), text))
    return found


def _agreement(
    dump: Dump,
    last: AllocatorCall,
    calls: Sequence[ReplayedCall],
    at_start: Sequence[Broken],
    pair: ReferenceAllocator,
) -> tuple[str, str]:
    verdict = dump.manifest.verdict
    at_end = {one.invariant for one in calls[-1].broken}
    if verdict in at_end:
        return "agrees", f"the dump says {verdict} of its last call, {calls[-1].number}, and so does the replay"
    if verdict in {one.verdict for one in at_start}:
        return "agrees", f"the state that the calls begin with is {verdict} already, as the dump says of the last call"
    if not pair.known:
        return "cannot be judged", "the state before the calls is not in the dump, so only the calls' own slots were"
    if verdict == "stale_mapping" and last.call in SWA_FREES and last.left is None:
        return "cannot be judged", f"the dump does not say what {last.call} left in the mapping"
    if dump.manifest.site.endswith(".free_group"):
        return "cannot be judged", "the calls say what a group was given, and not what it still held as it ended"
    what = f"the replay finds {', '.join(sorted(at_end))}" if at_end else "in the replay it breaks no invariant"
    return "disagrees", f"the dump says {verdict} of its last call, {calls[-1].number}; {what}"


def _request_slot(dump: Dump) -> int | None:
    return next((bad.request_slot for bad in dump.manifest.offences if bad.request_slot is not None), None)
