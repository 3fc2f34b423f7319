"""The ledger of one allocator: a `PageLedger` per pool, request slot generations, and how events become history."""

from __future__ import annotations

from collections import deque
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator

from gemma4_runtime.checks.page_census import Fault
from gemma4_runtime.checks.page_ledger import PageLedger, Site
from gemma4_runtime.leak.event_log import Entry, EventLog, Kind

SITE: ContextVar[Site] = ContextVar("leak-ledger site", default=Site.UNKNOWN)
"""Who is asking; set by the hooks around SGLang's callers of the allocators."""

RECENT_EVENTS = 64
_PAGES_NAMED = 8


@dataclass(frozen=True)
class Anomaly:
    """A page that an event found in the wrong state: freed while free, handed out while in use."""

    fault: Fault
    pool: str
    page: int


class LeakLedger:
    """History of the pools of one allocator: `full`, and `swa` for a hybrid one. `step` counts scheduler steps.

    `about` of an OWNED entry: (request slots, generations, lengths), host lists; slots lie request after request.
    """

    def __init__(self, allocator: Any) -> None:
        hybrid = isinstance(allocator, SWATokenToKVPoolAllocator)
        inner = {"full": allocator.full_attn_allocator, "swa": allocator.swa_attn_allocator} if hybrid else None
        self.page_size: int = allocator.page_size
        self.step = 0
        self.pools = {name: _page_ledger(part) for name, part in (inner or {"full": allocator}).items()}
        self.anomalies: list[Anomaly] = []
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT_EVENTS)
        self.log = EventLog(self._fold)
        self.latest_hand_out: torch.Tensor | None = None
        self.latest_swa_hand_out: torch.Tensor | None = None
        for name, part in (inner or {"full": allocator}).items():
            _POOL_OF[part] = (self, name)

    def handed_out(self, pool: str, slots: torch.Tensor) -> None:
        self._add(Kind.HANDED_OUT, pool, self.log.keep(slots))
        if pool == "full":
            self.latest_hand_out = slots
        else:
            self.latest_swa_hand_out = slots

    def paired(self, full: torch.Tensor, swa: torch.Tensor) -> None:
        """`full` and `swa`, [n] each: the mapping now leads from the one to the other."""
        self._add(Kind.PAIRED, "full", self.log.keep(full), self.log.keep(swa))

    def owned(self, slots: torch.Tensor, request_slots: list[int], generations: list[int], lengths: list[int]) -> None:
        """`slots`, [sum of lengths], were written into the rows of `request_slots`."""
        self._add(Kind.OWNED, "full", self.log.keep(slots), (request_slots, generations, lengths))

    def free_asked(self, pool: str, slots: torch.Tensor) -> None:
        self._add(Kind.FREE_ASKED, pool, self.log.keep(slots))

    def freed(self, pool: str, slots: torch.Tensor) -> None:
        self._add(Kind.FREED, pool, self.log.keep(slots))

    def cleared(self, pool: str) -> None:
        self._add(Kind.CLEARED, pool, None)

    def _add(self, kind: Kind, pool: str, slots: torch.Tensor | None, about: Any = None) -> None:
        self.log.add(Entry(kind, pool, SITE.get(), self.step, slots, about))

    def _fold(self, entry: Entry, slots: np.ndarray | None, about: Any) -> None:
        pool = self.pools[entry.pool]
        if entry.kind is Kind.CLEARED:
            pool.clear(entry.step)
            self.anomalies.clear()
        else:
            assert slots is not None
            self._fold_slots(entry, pool, slots, about)
        self._remember(entry, pool, slots, about)

    def _fold_slots(self, entry: Entry, pool: PageLedger, slots: np.ndarray, about: Any) -> None:
        match entry.kind:
            case Kind.HANDED_OUT:
                bad = pool.hand_out(slots, entry.site, entry.step)
                self.anomalies += [Anomaly(Fault.HANDED_OUT_IN_USE, entry.pool, int(page)) for page in bad]
            case Kind.OWNED:
                self._own(pool, slots, *about)
            case Kind.PAIRED:
                pool.peer[_clip(slots // self.page_size, pool.pages)] = about // self.page_size
                swa = self.pools["swa"]
                swa.peer[_clip(about // self.page_size, swa.pages)] = slots // self.page_size
            case Kind.FREE_ASKED:
                pool.ask_free(slots, entry.site, entry.step)
            case Kind.FREED:
                bad = pool.free(slots, entry.site, entry.step)
                self.anomalies += [Anomaly(Fault.FREED_AGAIN, entry.pool, int(page)) for page in bad]

    def _own(
        self, pool: PageLedger, slots: np.ndarray, requests: list[int], generations: list[int], lengths: list[int]
    ):
        if sum(lengths) != slots.size:
            return
        pages = slots // self.page_size
        who, which = np.repeat(requests, lengths), np.repeat(generations, lengths)
        pool.own(pages, who, which)
        if "swa" in self.pools:
            self.pools["swa"].own(pool.peer[_clip(pages, pool.pages)], who, which)

    def _remember(self, entry: Entry, pool: PageLedger, slots: np.ndarray | None, about: Any) -> None:
        pages = [] if slots is None else pool.pages_of(slots).tolist()
        event = {
            "kind": entry.kind.name.lower(),
            "pool": entry.pool,
            "site": Site(entry.site).name.lower(),
            "step": entry.step,
            "pages": len(pages),
            "first_pages": pages[:_PAGES_NAMED],
        }
        if entry.kind is Kind.OWNED:
            event["request_slots"] = about[0][:_PAGES_NAMED]
        if entry.kind is not Kind.PAIRED:
            self.recent.append(event)


_POOL_OF: WeakKeyDictionary[Any, tuple[LeakLedger, str]] = WeakKeyDictionary()
_LEDGERS: WeakKeyDictionary[Any, LeakLedger] = WeakKeyDictionary()
_GENERATIONS: WeakKeyDictionary[Any, dict[int, int]] = WeakKeyDictionary()


def ledger_of(allocator: Any) -> LeakLedger:
    """The ledger of `allocator` (the one that the scheduler holds), from now on."""
    ledger = _LEDGERS.get(allocator)
    if ledger is None:
        ledger = _LEDGERS[allocator] = LeakLedger(allocator)
    return ledger


def pool_of(inner: Any) -> tuple[LeakLedger, str]:
    """The ledger and the pool name of a paged or token allocator, which may be one of a hybrid pair."""
    found = _POOL_OF.get(inner)
    if found is None:
        ledger_of(inner)
        found = _POOL_OF[inner]
    return found


def generations_of(req_to_token_pool: Any) -> dict[int, int]:
    """Request slot -> how often this pool gave it out while the probe watched."""
    return _GENERATIONS.setdefault(req_to_token_pool, {})


def _page_ledger(inner: Any) -> PageLedger:
    free = torch.cat((inner.free_pages, inner.release_pages)).cpu().numpy()
    return PageLedger(inner.size // inner.page_size, inner.page_size, free)


def _clip(pages: np.ndarray, most: int) -> np.ndarray:
    return np.where((pages < 0) | (pages > most), 0, pages)
