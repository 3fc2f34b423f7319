"""The latest events of a ledger as dumps hold them: chunks are kept, and read when somebody asks."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from gemma4_runtime.checks.page_events import Events, Kind
from gemma4_runtime.checks.page_ledger import PageLedger, Site

RECENT_EVENTS = 64
_NAMED = 8


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

    def documents(self, pools: Sequence[tuple[str, PageLedger]]) -> list[dict[str, Any]]:
        """Return them for JSON, oldest first. pools: name and ledger of the pools FULL and SWA."""
        numbers = [(events, n) for events, _ in self._chunks for n in np.flatnonzero(events.kind != Kind.PAIRED)]
        return [_document(events, number, pools) for events, number in numbers[-RECENT_EVENTS:]]


def _document(events: Events, number: int, pools: Sequence[tuple[str, PageLedger]]) -> dict[str, Any]:
    kind = Kind(events.kind[number])
    name, ledger = pools[events.pool[number]]
    pages = ledger.pages_of(events.slots_of(number))
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
    return said | {"request_slots": events.requests_of(number)[:_NAMED].tolist()} if kind is Kind.OWNED else said
