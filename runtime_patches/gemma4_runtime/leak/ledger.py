"""The ledger of an allocator: a `PageLedger` per pool, slots' generations, and how events become history."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from gemma4_runtime.by_identity import ByIdentity
from gemma4_runtime.checks.page_census import Fault
from gemma4_runtime.checks.page_events import FULL, SWA, Events, Kind, PageRows, Runs, inside, telling
from gemma4_runtime.checks.page_ledger import Folded, PageLedger, Site
from gemma4_runtime.leak.event_log import EventLog
from gemma4_runtime.leak.whereabouts import TreeMemory
from gemma4_runtime.release import SWATokenToKVPoolAllocator
from gemma4_runtime.release.allocators import free_page_lists

SITE: ContextVar[Site] = ContextVar("leak-ledger site", default=Site.UNKNOWN)
"""Who is asking; set by the hooks around SGLang's callers of the allocators."""

BY: ContextVar[tuple[int, int] | None] = ContextVar("leak-ledger request", default=None)
"""Request slot and generation of the request whose pages are being given back; None where no request gives any."""

UP_TO: ContextVar[int | None] = ContextVar("leak-ledger insert", default=None)
"""Up to which token 0.5.23 puts a request into its prefix cache meanwhile; None where it does not."""

# As in the event log: plain numbers, since a hook uses them.
_HANDED_OUT, _FREE_ASKED, _FREED = int(Kind.HANDED_OUT), int(Kind.FREE_ASKED), int(Kind.FREED)
_GIVEN, _SHARED = int(Kind.GIVEN), int(Kind.SHARED)
RECENT_EVENTS, _NAMED = 64, 8
"""How many of the latest events a dump holds, and how many pages and requests of each it names."""
_WRONG = {Kind.HANDED_OUT: Fault.HANDED_OUT_IN_USE, Kind.FREED: Fault.FREED_AGAIN}


@dataclass(frozen=True)
class Anomaly:
    """A page that an event found in the wrong state: freed while free, handed out while in use."""

    fault: Fault
    pool: str
    page: int


class HandOut(NamedTuple):
    """A hand-out by reference: the pool's free lists before and after, and the slots given."""

    pool: int
    before: tuple[torch.Tensor, ...]
    after: tuple[torch.Tensor, ...]
    slots: torch.Tensor


class Generations(defaultdict[int, int]):
    """Request slot -> how often this pool gave it out while the probe watched.

    Attributes:
        left: Slots that were still on the list of free ones when they had just been given out.
    """

    def __init__(self) -> None:
        super().__init__(int)
        self.left: set[int] = set()
        self._asked: list[int] | None = None
        self._answer: list[int] = []

    def begin(self, slot: int) -> None:
        """Note that the pool gives out `slot`."""
        self[slot] += 1
        self.left.discard(slot)
        self._asked = None

    def of(self, slots: list[int]) -> list[int]:
        """Return the generation of each of `slots`: the same list as long as a batch that decodes stays the same."""
        if slots != self._asked:
            self._asked, self._answer = slots, [self[slot] for slot in slots]
        return self._answer


class LeakLedger:
    """History of the pools of one allocator: `full`, and `swa` for a hybrid one. `step` counts scheduler steps.

    Hooks name a pool by its number, FULL or SWA.
    """

    def __init__(self, allocator: Any) -> None:
        hybrid = isinstance(allocator, SWATokenToKVPoolAllocator)
        inner = {"full": allocator.full_attn_allocator, "swa": allocator.swa_attn_allocator} if hybrid else None
        self.page_size: int = allocator.page_size
        self.step = 0
        self.pools = {name: _page_ledger(part) for name, part in (inner or {"full": allocator}).items()}
        # Each once, so that no more wait for an audit than there are pages.
        self.anomalies: dict[Anomaly, None] = {}
        self.tree = TreeMemory()
        self.log = EventLog(self._fold, self.page_size)
        # Of both pools, of a prefill and of what follows it in its step.
        self.hand_outs: deque[HandOut] = deque(maxlen=6)
        self.latest_hand_out: torch.Tensor | None = None
        self.latest_swa_hand_out: torch.Tensor | None = None
        self._by_number = list(self.pools.items())
        self._recent = RecentEvents()
        for number, part in enumerate((inner or {"full": allocator}).values()):
            _POOL_OF.put(part, (self, number))

    def handed_out(self, pool: int, slots: torch.Tensor) -> None:
        self.log.add(_HANDED_OUT, pool, SITE.get(), self.step, slots)
        if pool == FULL:
            self.latest_hand_out = slots
        else:
            self.latest_swa_hand_out = slots

    def paired(self, full: torch.Tensor, swa: torch.Tensor) -> None:
        """`full` and `swa`, [n] each: the mapping now leads from the one to the other."""
        self.log.add_paired(SITE.get(), self.step, full, swa)

    def owned(self, slots: torch.Tensor, requests: list[int], generations: list[int], lengths: list[int]) -> None:
        """`slots`, [sum of lengths], were written into the rows of the request slots `requests`."""
        self.log.add_owned(SITE.get(), self.step, slots, requests, generations, lengths)

    def free_asked(self, pool: int, slots: torch.Tensor) -> None:
        self.log.add(_FREE_ASKED, pool, SITE.get(), self.step, slots, BY.get())

    def freed(self, pool: int, slots: torch.Tensor) -> None:
        self.log.add(_FREED, pool, SITE.get(), self.step, slots, BY.get())

    def given(self, slots: torch.Tensor) -> None:
        """Note that the prefix cache has these slots of the full pool, [n], from now on."""
        self.log.add(_GIVEN, FULL, SITE.get(), self.step, slots)

    def shared(self, slots: torch.Tensor, by: tuple[int, int]) -> None:
        """Note that the request `by`, slot and generation, took pages with these slots from the prefix cache, [n]."""
        self.log.add(_SHARED, FULL, SITE.get(), self.step, slots, by)

    def cleared(self, pool: int) -> None:
        self.log.add(Kind.CLEARED, pool, SITE.get(), self.step, None)

    @property
    def recent(self) -> list[dict[str, Any]]:
        """The latest events but for pairings, as dumps hold them, oldest first."""
        return self._recent.documents(self._by_number)

    def giver_of(self, page: int, pool: int = FULL) -> int | None:
        """Return the request slot that gave a page of a pool back last; None if that is not known any more."""
        return self._recent.giver_of(page, pool)

    def frees_of(self, pages: np.ndarray, steps: np.ndarray, pool: int = FULL) -> np.ndarray:
        """Return by how many calls each of `pages`, [n], of a pool was asked back in its step of `steps`, [n].

        0 where those calls are not known any more.
        """
        return self._recent.frees_of(pages, steps, pool)

    def _fold(self, events: Events) -> None:
        began, all_cleared = 0, np.flatnonzero(events.kind == Kind.CLEARED)
        runs = events.runs if all_cleared.size else self._telling(events)
        for cleared in all_cleared:
            self._fold_between(events, began, cleared, runs)
            _, pool = self._by_number[events.pool[cleared]]
            pool.clear(int(events.step[cleared]))
            self.anomalies.clear()
            began = cleared + 1
        self._fold_between(events, began, events.kind.size, runs)
        self._recent.add(events)

    def _telling(self, events: Events) -> Runs:
        """Return the runs of `events` that a fold must read. At page size 1 no page is handed out again in parts."""
        if self.page_size == 1:
            return events.runs
        full, swa = self.pools["full"], self.pools.get("swa")
        return telling(events, full.pages, 0 if swa is None else swa.pages, full.peer)

    def _fold_between(self, events: Events, began: int, end: int, runs: Runs) -> None:
        """Fold the events from `began` until `end`, none of them CLEARED, as far as `runs` name pages."""
        chosen = np.arange(began, end)[events.whole[began:end]]
        full = PageRows.of(events, chosen[events.pool[chosen] == FULL], FULL, self.pools["full"].pages, runs)
        folded = [self.pools["full"].fold(full, events.site, events.step)]
        if "swa" in self.pools:
            pool = self.pools["swa"]
            swa = chosen[(events.pool[chosen] == SWA) | (events.kind[chosen] == Kind.PAIRED)]
            owned = replace(folded[0].owned, page=inside(folded[0].owned.page, pool.pages))
            rows = PageRows.of(events, swa, SWA, pool.pages, runs).merged_with(owned)
            folded.append(pool.fold(rows, events.site, events.step))
        self.anomalies.update(dict.fromkeys(self._anomalies(events, folded)))

    def _anomalies(self, events: Events, folded: list[Folded]) -> list[Anomaly]:
        """Return them in the order of their events, which are those of one pool."""
        found = [
            (int(event), Anomaly(_WRONG[Kind(events.kind[event])], name, int(page)))
            for (name, _), of_pool in zip(self._by_number, folded, strict=True)
            for event, page in zip(of_pool.event, of_pool.page, strict=True)
        ]
        # A free of the pair frees the SWA side too, whose pages have the owners of the full ones.
        name, _ = self._by_number[FULL]
        found += [(event, Anomaly(Fault.FREED_BY_OTHER, name, page)) for event, page in folded[FULL].strangers]
        return [anomaly for _, anomaly in sorted(found, key=lambda pair: pair[0])]


class RecentEvents:
    """Remembers the chunks that hold the latest RECENT_EVENTS events but for pairings: at most one beyond need."""

    def __init__(self) -> None:
        self._chunks: deque[tuple[Events, int]] = deque()
        self._told = 0

    def add(self, events: Events) -> None:
        told = int(np.count_nonzero(events.kind != Kind.PAIRED))
        self._chunks.append((events, told))
        self._told += told
        while self._told - self._chunks[0][1] >= RECENT_EVENTS:
            self._told -= self._chunks.popleft()[1]

    def giver_of(self, page: int, pool: int) -> int | None:
        """Return the request slot of the latest free of a page of a pool; None if that free is not known.

        A free in a group is nobody's as the group ends: who asked for it just before gave the page back.
        """
        ended = False
        for events, _ in reversed(self._chunks):
            told = np.isin(events.kind, (Kind.HANDED_OUT, Kind.FREED, Kind.FREE_ASKED)) & (events.pool == pool)
            for number in np.flatnonzero(told)[::-1]:
                kind = events.kind[number]
                # What has handed the page out since is no matter; behind the free, it began another life.
                if (kind == Kind.HANDED_OUT and not ended) or page not in events.slots_of(number) // events.page_size:
                    continue
                if events.second[number] >= 0 and kind != Kind.HANDED_OUT:
                    return int(events.requests_of(number)[0])
                if kind != Kind.FREED or ended:
                    return None
                ended = True
        return None

    def frees_of(self, pages: np.ndarray, steps: np.ndarray, pool: int) -> np.ndarray:
        """Return by how many calls each page was asked back in its step: int64 [n]. The end of a group is none."""
        asked, freed = np.zeros(len(pages), np.int64), np.zeros(len(pages), np.int64)
        for events, _ in self._chunks:
            told = np.isin(events.kind, (Kind.FREED, Kind.FREE_ASKED)) & (events.pool == pool)
            for number in np.flatnonzero(told & np.isin(events.step, steps)):
                named = np.isin(pages, events.slots_of(number) // events.page_size) & (steps == events.step[number])
                count = freed if events.kind[number] == Kind.FREED else asked
                count += named
        return np.where(asked > 0, asked, freed)

    def documents(self, pools: Sequence[tuple[str, PageLedger]]) -> list[dict[str, Any]]:
        """Return them for JSON, oldest first.

        Args:
            pools: Name and ledger of the pools FULL and SWA.
        """
        numbers = [(events, n) for events, _ in self._chunks for n in np.flatnonzero(events.kind != Kind.PAIRED)]
        return [_document(events, number, pools) for events, number in numbers[-RECENT_EVENTS:]]


def _document(events: Events, number: int, pools: Sequence[tuple[str, PageLedger]]) -> dict[str, Any]:
    kind = Kind(events.kind[number])
    name, ledger = pools[events.pool[number]]
    slots = events.slots_of(number)
    pages = ledger.pages_of(slots)
    said = {
        "kind": kind.name.lower(),
        "pool": name,
        "site": Site(events.site[number]).name.lower(),
        "step": int(events.step[number]),
        "pages": pages.size,
        "first_pages": pages[:_NAMED].tolist(),
    }
    if kind in (Kind.FREED, Kind.FREE_ASKED, Kind.SHARED) and events.second[number] >= 0:
        said["by_request_slot"] = int(events.requests_of(number)[0])
    of_page_0 = np.unique(slots[(slots >= 0) & (slots < ledger.page_size)]).size
    if kind is Kind.FREE_ASKED and not pages.size and of_page_0 > 1:
        # A row that was never written has one slot of page 0, over and over; of page ids nobody can tell.
        said["slots"] = int(of_page_0)
    return said | {"request_slots": events.requests_of(number)[:_NAMED].tolist()} if kind is Kind.OWNED else said


_POOL_OF: ByIdentity[tuple[LeakLedger, int]] = ByIdentity()
_LEDGERS: ByIdentity[LeakLedger] = ByIdentity()
_GENERATIONS: ByIdentity[Generations] = ByIdentity()


def ledger_of(allocator: Any) -> LeakLedger:
    """Return the ledger of `allocator` (the one that the scheduler holds), from now on."""
    return _LEDGERS.get(allocator) or _LEDGERS.put(allocator, LeakLedger(allocator))


def pool_of(inner: Any) -> tuple[LeakLedger, int]:
    """Return the ledger of a paged or token allocator, which may be one of a hybrid pair, and its pool's number."""
    found = _POOL_OF.get(inner)
    if found is None:
        ledger_of(inner)
        found = _POOL_OF.get(inner)
        assert found is not None
    return found


def generations_of(req_to_token_pool: Any) -> Generations:
    """Return what `req_to_token_pool`, a `ReqToTokenPool`, has given out."""
    found = _GENERATIONS.get(req_to_token_pool)
    return _GENERATIONS.put(req_to_token_pool, Generations()) if found is None else found


def _page_ledger(inner: Any) -> PageLedger:
    free = torch.cat(free_page_lists(inner)).cpu().numpy()
    return PageLedger(inner.size // inner.page_size, inner.page_size, free)
