"""The latest events of a ledger as dumps hold them: kept as slots, turned into pages when somebody asks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemma4_runtime.checks.page_events import Events, Kind
from gemma4_runtime.checks.page_ledger import PageLedger, Site

_NAMED = 8


@dataclass(frozen=True)
class RecentEvent:
    """slots: a copy, so that no chunk of events is kept for it. requests: of OWNED, the first few; else None."""

    kind: Kind
    pool: int
    site: Site
    step: int
    slots: np.ndarray
    requests: list[int] | None

    @classmethod
    def of(cls, events: Events, number: int) -> RecentEvent:
        kind, pool = Kind(events.kind[number]), int(events.pool[number])
        requests = events.requests_of(number)[:_NAMED].tolist() if kind is Kind.OWNED else None
        site, step = Site(events.site[number]), int(events.step[number])
        return cls(kind, pool, site, step, events.slots_of(number).copy(), requests)

    def document(self, pools: Sequence[tuple[str, PageLedger]]) -> dict[str, Any]:
        """For JSON. pools: name and ledger of the pools FULL and SWA."""
        name, ledger = pools[self.pool]
        pages = ledger.pages_of(self.slots)
        said = {
            "kind": self.kind.name.lower(),
            "pool": name,
            "site": self.site.name.lower(),
            "step": self.step,
            "pages": pages.size,
            "first_pages": pages[:_NAMED].tolist(),
        }
        return said if self.requests is None else said | {"request_slots": self.requests}
