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


def below_zero(mapping: np.ndarray, page_size: int) -> list[Finding]:
    """Return the full pages of which the mapping has a negative number; its last entry, -1, is that of no slot.

    Args:
        mapping: All of it, [slots + 1].
        page_size: In tokens.
    """
    full = np.unique(np.flatnonzero(mapping[:-1] < 0) // page_size)
    return [Finding(Fault.MAPPED_BELOW_ZERO, "full", full, np.ones_like(full))] if full.size else []


def of_padding(mapping: np.ndarray, page_size: int) -> list[Finding]:
    """Return page 0, which is for padding, if the mapping has an SWA slot for it: what padded rows store goes there.

    Args:
        mapping: All of it, [slots + 1].
        page_size: In tokens.
    """
    count = np.count_nonzero(mapping[:page_size] > 0)
    return [Finding(Fault.MAPPED_ELSEWHERE, "full", np.array([0]), np.array([count]))] if count else []


def left_over(mapping: np.ndarray, free: np.ndarray, free_swa: np.ndarray, page_size: int) -> list[Finding]:
    """Return the free full pages that the mapping leads from to free SWA pages: a free, and a reset, clear theirs.

    An SWA page that is not free is somebody's still, or lost, which is another fault.

    Args:
        mapping: All of it, [slots + 1].
        free: The full pages that are free, [any].
        free_swa: The free SWA pages, [any].
        page_size: In tokens.
    """
    slots = np.flatnonzero(np.isin(mapping[:-1] // page_size, free_swa[free_swa > 0]))
    full = np.intersect1d(slots // page_size, free[free > 0])
    return [Finding(Fault.STALE_MAPPING, "full", full, np.ones_like(full))] if full.size else []


def out_of_place(pairs: SlotPairs, page_size: int) -> np.ndarray:
    """Return live slots that lead to another place of an SWA page than their own in their page, int64 [n, 3].

    A slot is as far into its page in both pools: it, where the mapping leads from it, and where that belongs in that
    SWA page.

    Args:
        pairs: What somebody holds, and where the mapping leads from there.
        page_size: In tokens.
    """
    own = pairs.swa // page_size * page_size + pairs.full % page_size
    wrong = pairs.live & (pairs.swa > 0) & (pairs.full > 0) & (pairs.swa != own)
    return np.unique(np.stack((pairs.full, pairs.swa, own), axis=1)[wrong], axis=0)


def led_apart(pairs: SlotPairs, page_size: int, peers: np.ndarray) -> np.ndarray:
    """Return live slots that lead to another SWA page than the rest of their full page, int64 [n, 3].

    It, where the mapping leads from it, and where it belongs: the other slots lead to the page that the full page was
    handed out with, so that the hand-out was right, and these entries were written wrong, with it or since.

    Args:
        pairs: What somebody holds, and where the mapping leads from there.
        page_size: In tokens.
        peers: By full page the SWA page that its mapping was made with, 0 where that is not known; [full pages + 1].
    """
    full = pairs.full // page_size
    known = pairs.live & (pairs.swa > 0) & (full > 0) & (full < peers.size)
    peer = np.where(known, peers[np.where(known, full, 0)], 0)
    right = known & (peer > 0) & (pairs.swa // page_size == peer)
    wrong = known & (peer > 0) & ~right & np.isin(full, full[right])
    own = peer * page_size + pairs.full % page_size
    return np.unique(np.stack((pairs.full, pairs.swa, own), axis=1)[wrong], axis=0)


def check_mapping(
    pairs: SlotPairs, free_swa: np.ndarray, pages: int, page_size: int, peers: np.ndarray | None = None
) -> list[Finding]:
    """Return the full pages whose mapping is wrong.

    A live slot without an SWA slot would read the dummy page. A mapping that leads into a free page, out of the pool,
    or from a slot whose SWA side was given up, is stale: the page is, or will be, somebody else's. One that leads to
    another page than it was made with, or elsewhere in it, reads the keys that are there, whoever's they are.

    Args:
        pairs: What somebody holds, and where the mapping leads from there.
        free_swa: The free SWA pages, [any].
        pages: How many the SWA pool has.
        page_size: In tokens.
        peers: By full page the SWA page that its mapping was made with, 0 where that is not known; [full pages + 1].
    """
    target = pairs.swa // page_size
    is_free = np.zeros(pages + 2, bool)
    is_free[free_swa[(free_swa > 0) & (free_swa <= pages)]] = True
    mapped = pairs.swa > 0
    outside = mapped & ((target < 1) | (target > pages))
    stale = mapped & (~pairs.live | outside | is_free[np.clip(target, 0, pages + 1)])
    elsewhere = np.zeros_like(mapped)
    if peers is not None:
        full = pairs.full // page_size
        known = (full > 0) & (full < peers.size)
        peer = np.where(known, peers[np.where(known, full, 0)], 0)
        elsewhere = mapped & ~stale & (peer > 0) & (target != peer)
    elsewhere |= ~stale & np.isin(pairs.full, out_of_place(pairs, page_size)[:, 0])
    cases = (
        (Fault.UNMAPPED, pairs.live & ~mapped),
        (Fault.STALE_MAPPING, stale),
        (Fault.MAPPED_ELSEWHERE, elsewhere),
    )
    found = []
    for fault, bad in cases:
        full = np.unique(pairs.full[bad] // page_size)
        if full.size:
            found.append(Finding(fault, "full", full, np.ones_like(full)))
    return found
