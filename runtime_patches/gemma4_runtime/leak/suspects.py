"""The table that a dump of the leak audit holds: a row of history per suspect page."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gemma4_runtime.checks.page_census import Finding
from gemma4_runtime.checks.page_events import NOBODY
from gemma4_runtime.checks.page_ledger import LIFE_COLUMNS, SHARE_COLUMNS, PageLedger
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
LIVES_COLUMNS = ("page", "pool", *LIFE_COLUMNS)
SHARES_COLUMNS = ("page", "pool", *SHARE_COLUMNS)
MOST_WITH_LIVES = 256
"""How many suspects of a dump have their lives beside them, and who took them from the prefix cache."""


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


def lives(table: np.ndarray, ledger: LeakLedger) -> np.ndarray:
    """Return the lives of the first suspects of `table`, oldest first: int64 [lives, len(LIVES_COLUMNS)].

    The last one of a page is the present one.
    """
    return _beside(table, ledger, LIVES_COLUMNS, PageLedger.lives_of)


def shares(table: np.ndarray, ledger: LeakLedger) -> np.ndarray:
    """Return who took the first suspects of `table` from the prefix cache, oldest first: [shares, SHARES_COLUMNS]."""
    return _beside(table, ledger, SHARES_COLUMNS, PageLedger.shares_of)


def _beside(
    table: np.ndarray,
    ledger: LeakLedger,
    columns: Sequence[str],
    of_page: Callable[[PageLedger, int], np.ndarray],
) -> np.ndarray:
    parts = [np.empty((0, len(columns)), np.int64)]
    for page, pool in table[:MOST_WITH_LIVES, :2].tolist():
        history = ledger.pools.get(POOLS[pool])
        if history is not None and 0 < page <= history.pages:
            found = of_page(history, page)
            parts.append(np.concatenate((np.tile((page, pool), (len(found), 1)), found), axis=1))
    return np.concatenate(parts)
