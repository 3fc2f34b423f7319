"""Who holds the pages that an audit suspects, and where the mapping leads from them: `holders` in its dump."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gemma4_runtime.checks.page_census import Finding
from gemma4_runtime.checks.page_ledger import LastEvent
from gemma4_runtime.leak.ledger import LeakLedger
from gemma4_runtime.leak.whereabouts import Reading

HOLDER_COLUMNS = ("page", "holder", "swa_page")
"""page: of the full pool, or no page of it. holder: request slot of a row, 0 for the prefix cache. swa_page: where the
mapping leads from the page now, 0 for nowhere, -1 if nothing can be looked up."""
EDGE_COLUMNS = ("request_slot", "column", "page", "swa_free_step")
"""column: of the row, in pages. swa_free_step: when the SWA page that served it was given back, -1 if nobody saw it."""
MAX_HOLDERS = 4096
_GIVEN_BACK = (LastEvent.FREE_ASKED, LastEvent.FREED)


def holders(reading: Reading, findings: Sequence[Finding], ledger: LeakLedger) -> np.ndarray:
    """Return int64 [rows, 3]: each holder of each page concerned.

    Concerned are the full pages that are suspected or held outside their pool, the full pages that the suspected SWA
    pages were handed out for, and those that lead to suspected SWA pages now.

    Args:
        reading: What the audit looked at.
        findings: All of the audit's.
        ledger: Knows the peers of SWA pages.
    """
    full = next(where for where in reading.pools if where.pool == "full")
    page_size = ledger.page_size
    leads_to = _leads_to(reading.mapping, full.pages, page_size)
    suspected = {pool: _pages(findings, pool) for pool in ("full", "swa")}
    concerned = np.union1d(suspected["full"], _peers(ledger, suspected["swa"]))
    rows = []
    for holder, held in zip(reading.holders, full.held, strict=False):
        known = (held > 0) & (held <= full.pages)
        target = np.where(known, leads_to[np.where(known, held, 0)], -1)
        wanted = ~known | np.isin(held, concerned) | (known & (target > 0) & np.isin(target, suspected["swa"]))
        rows += [(page, holder, to) for page, to in zip(held[wanted].tolist(), target[wanted].tolist(), strict=True)]
    return np.array(rows[:MAX_HOLDERS], np.int64).reshape(-1, len(HOLDER_COLUMNS))


def edges(reading: Reading, ledger: LeakLedger) -> np.ndarray:
    """Return int64 [rows, 4]: where each request's window may begin, columns as EDGE_COLUMNS."""
    rows = []
    full, swa = ledger.pools["full"], ledger.pools.get("swa")
    for slot, (first, pages) in sorted(reading.edges.items()):
        for column, page in enumerate(pages.tolist(), first):
            peer = int(full.peer[page]) if swa is not None and 0 < page <= full.pages else 0
            step = -1
            if swa is not None and peer and int(swa.peer[peer]) == page and swa.last_event[peer] in _GIVEN_BACK:
                step = int(swa.free_step[peer])
            rows.append((slot, column, page, step))
    return np.array(rows[:MAX_HOLDERS], np.int64).reshape(-1, len(EDGE_COLUMNS))


def _leads_to(mapping: np.ndarray | None, pages: int, page_size: int) -> np.ndarray:
    """Return the SWA page that each full page leads to, int64 [pages + 1]: by the largest of its slots'."""
    if mapping is None:
        return np.full(pages + 1, -1, np.int64)
    whole = np.zeros((pages + 1) * page_size, np.int64)
    known = mapping[: whole.size]
    whole[: known.size] = known
    by_page = whole.reshape(-1, page_size)
    negative = by_page.min(axis=1) < 0
    return np.where(negative, -1, by_page.max(axis=1) // page_size)


def _pages(findings: Sequence[Finding], pool: str) -> np.ndarray:
    return np.concatenate([np.empty(0, np.int64), *(one.pages for one in findings if one.pool == pool)])


def _peers(ledger: LeakLedger, swa_pages: np.ndarray) -> np.ndarray:
    history = ledger.pools.get("swa")
    if history is None:
        return np.empty(0, np.int64)
    known = swa_pages[(swa_pages > 0) & (swa_pages <= history.pages)]
    return history.peer[known].astype(np.int64)
