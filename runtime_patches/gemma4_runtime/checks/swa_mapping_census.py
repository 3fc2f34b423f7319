"""The full-to-SWA mapping at an audit: live slots have SWA slots of their own, dead ones have none. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gemma4_runtime.checks.page_census import Fault, Finding


@dataclass(frozen=True)
class SlotPairs:
    """Full slots that somebody holds and what the mapping has for them, [n] each.

    Attributes:
        live: False where the SWA side was given up: a tombstoned tree node, or below a request's swa_evicted_seqlen.
    """

    full: np.ndarray
    swa: np.ndarray
    live: np.ndarray


def held_swa_pages(pairs: SlotPairs, page_size: int) -> np.ndarray:
    """SWA pages that live slots lead to, once per full page that leads there: a page named twice serves two."""
    used = pairs.live & (pairs.swa > 0)
    target = pairs.swa[used] // page_size
    width = int(target.max(initial=0)) + 1
    return np.unique(pairs.full[used] // page_size * width + target) % width


def check_mapping(pairs: SlotPairs, free_swa: np.ndarray, pages: int, page_size: int) -> list[Finding]:
    """Full pages whose mapping is wrong. free_swa: the free SWA pages [any]; pages: of the SWA pool.

    A live slot without an SWA slot would read the dummy page. A mapping that leads into a free page, out of the pool,
    or from a slot whose SWA side was given up, is stale: the page is, or will be, somebody else's.
    """
    target = pairs.swa // page_size
    is_free = np.zeros(pages + 2, bool)
    is_free[free_swa[(free_swa > 0) & (free_swa <= pages)]] = True
    mapped = pairs.swa > 0
    outside = mapped & ((target < 1) | (target > pages))
    stale = mapped & (~pairs.live | outside | is_free[np.clip(target, 0, pages + 1)])
    found = []
    for fault, bad in ((Fault.UNMAPPED, pairs.live & ~mapped), (Fault.STALE_MAPPING, stale)):
        full = np.unique(pairs.full[bad] // page_size)
        if full.size:
            found.append(Finding(fault, "full", full, np.ones_like(full)))
    return found
