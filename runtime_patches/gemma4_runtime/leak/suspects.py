"""The table that a dump of the leak audit holds: a row of history per suspect page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gemma4_runtime.checks.page_census import Finding
from gemma4_runtime.checks.page_events import NOBODY
from gemma4_runtime.leak.ledger import LeakLedger
from gemma4_runtime.leak.whereabouts import REQUEST_SLOTS

POOLS = ("full", "swa", REQUEST_SLOTS)
"""Values of the column `pool`."""

COLUMNS = (
    "page",
    "pool",
    "fault",
    "places",
    "owner_slot",
    "owner_generation",
    "alloc_site",
    "alloc_step",
    "free_site",
    "free_step",
    "peer",
    "last_event",
)
MAX_SUSPECTS = 4096


def suspects(findings: Sequence[Finding], ledger: LeakLedger) -> np.ndarray:
    """int64 [suspects, len(COLUMNS)], at most MAX_SUSPECTS rows. peer: SWA page of a full page and back, 0 for none."""
    parts = [_rows(finding, ledger) for finding in findings]
    return np.concatenate(parts)[:MAX_SUSPECTS]


def _rows(finding: Finding, ledger: LeakLedger) -> np.ndarray:
    table = np.full((finding.pages.size, len(COLUMNS)), NOBODY, np.int64)
    table[:, 0], table[:, 1] = finding.pages, POOLS.index(finding.pool)
    table[:, 2], table[:, 3] = finding.fault, finding.places
    history = ledger.pools.get(finding.pool)
    if history is None:
        table[:, 4] = finding.pages
        table[:, 5:] = 0
        return table
    known = (finding.pages > 0) & (finding.pages <= history.pages)
    pages = finding.pages[known]
    columns = (
        history.owner,
        history.generation,
        history.alloc_site,
        history.alloc_step,
        history.free_site,
        history.free_step,
        history.peer,
        history.last_event,
    )
    table[known, 4:] = np.stack([column[pages] for column in columns], axis=1)
    # What is no page of the pool has no history, and its codes must be readable all the same.
    for name in ("owner_generation", "alloc_site", "free_site", "peer", "last_event"):
        table[~known, COLUMNS.index(name)] = 0
    return table
