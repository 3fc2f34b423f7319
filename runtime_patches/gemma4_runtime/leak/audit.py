"""One full audit of a scheduler's pools: history, places, checks and the equation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gemma4_runtime.checks.page_census import Fault, Finding, check_census
from gemma4_runtime.checks.swa_mapping_census import below_zero, check_mapping, left_over, of_padding
from gemma4_runtime.leak.equation import Equation, equations, short_of_the_pair
from gemma4_runtime.leak.ledger import LeakLedger, generations_of, ledger_of
from gemma4_runtime.leak.whereabouts import Reading, read, unreadable
from gemma4_runtime.release.allocators import pair_available
from gemma4_runtime.releases import at_least, read_as


class CannotAudit(Exception):
    """An audit cannot read this server's structures."""


@dataclass(frozen=True)
class Audit:
    """What one audit found. Each page of a pool is in one finding at most.

    Attributes:
        findings: What is wrong.
        equations: What SGLang counts of each pool.
        ledger: Of the pools.
        reading: What was looked at.
        generations: By request slot that is in use, how many requests have had it.
        left_listed: Request slots that were on the list of free ones still when they had just been given out.
        pair_available: How many tokens the pair of pools counts as free; None of one pool, or of another kind of pair.
    """

    findings: tuple[Finding, ...]
    equations: tuple[Equation, ...]
    ledger: LeakLedger
    reading: Reading
    generations: Mapping[int, int] = field(default_factory=dict)
    left_listed: Collection[int] = ()
    pair_available: int | None = None


def audit(allocator: Any, req_to_token_pool: Any, tree_cache: Any, requests: Iterable[Any], idle: bool) -> Audit:
    """Look at every page of every pool. Waits for the device.

    Args:
        allocator: Of the pools.
        req_to_token_pool: Has the rows.
        tree_cache: The prefix cache.
        requests: Every `Req` that may hold a request slot, each once.
        idle: No request is left, so none may hold a lock on the tree.

    Raises:
        CannotAudit: the holders of such a prefix cache cannot be told.
    """
    reason = unreadable(tree_cache)
    if reason:
        raise CannotAudit(reason)
    ledger = ledger_of(allocator)
    ledger.log.drain()
    reading = read(allocator, req_to_token_pool, tree_cache, requests)
    found = [finding for where in reading.pools for finding in check_census(where)]
    if reading.pairs is not None:
        swa = next(where for where in reading.pools if where.pool == "swa")
        found += check_mapping(reading.pairs, swa.free, swa.pages, allocator.page_size, ledger.pools["full"].peer)
    moved = ledger.tree.moved(reading.nodes)
    if moved.size:
        found.append(Finding(Fault.MOVED_IN_TREE, "full", moved, np.ones_like(moved)))
    if idle and not reading.session_pages["full"] and reading.locked.size:
        found.append(Finding(Fault.LOCKED_AT_IDLE, "full", reading.locked, np.ones_like(reading.locked)))
    found += _anomalies(ledger)
    if reading.mapping is not None:
        # What somebody holds has been found above.
        found += below_zero(reading.mapping, allocator.page_size)
        if allocator.full_attn_allocator is not allocator.swa_attn_allocator:
            found += of_padding(reading.mapping, allocator.page_size)
        if _clears_the_mapping(allocator):
            found += left_over(reading.mapping, reading.pools[0].free, reading.pools[1].free, allocator.page_size)
    sums = equations(allocator, req_to_token_pool, tree_cache, reading)
    once = tuple(_each_page_once(found))
    generations = generations_of(req_to_token_pool)
    in_use = {slot: generations[slot] for slot in reading.running if slot in generations}
    alone = () if once else (*_broken(reading), *_unbalanced(sums, short_of_the_pair(allocator, sums)))
    left = frozenset(generations.left)
    return Audit(once or alone, sums, ledger, reading, in_use, left, pair_available(allocator))


def _clears_the_mapping(allocator: Any) -> bool:
    """Return whether a full page that is free has nothing in the mapping.

    Before 0.5.14 a free left the entries of its pages that it was not given. Lists that are restored to what they were
    leave the mapping as it is. One pool for both has the mapping of each slot to itself.
    """
    restores = hasattr(allocator, "restore_state")
    apart = allocator.full_attn_allocator is not allocator.swa_attn_allocator
    return at_least(read_as(), "0.5.14") and apart and not restores


def _broken(reading: Reading) -> Iterable[Finding]:
    """Yield one where every page is in place, and the prefix cache's nodes do not hang together."""
    if reading.broken:
        yield Finding(Fault.TREE_BROKEN, "full", np.array([0]), np.array([0]))


def _unbalanced(sums: Iterable[Equation], short: Equation | None) -> Iterable[Finding]:
    """Yield one for each pool whose pages are in place, and whose counters say otherwise, or its pair's do."""
    for equation in sums:
        if not equation.holds or equation is short:
            yield Finding(Fault.UNBALANCED, equation.pool, np.array([0]), np.array([0]))


def _anomalies(ledger: LeakLedger) -> list[Finding]:
    by_kind: dict[tuple[Fault, str], list[int]] = {}
    for anomaly in ledger.anomalies:
        by_kind.setdefault((anomaly.fault, anomaly.pool), []).append(anomaly.page)
    ledger.anomalies.clear()
    pages = {key: np.unique(np.array(value)) for key, value in by_kind.items()}
    return [Finding(fault, pool, found, np.full_like(found, 2)) for (fault, pool), found in pages.items()]


def _each_page_once(findings: Iterable[Finding]) -> Iterable[Finding]:
    """Keep the first fault of a page: an event adds nothing to what the census sees."""
    seen: dict[str, set[int]] = {}
    for finding in findings:
        known = seen.setdefault(finding.pool, set())
        fresh = np.array([int(page) not in known for page in finding.pages])
        known.update(int(page) for page in finding.pages)
        if fresh.any():
            yield Finding(finding.fault, finding.pool, finding.pages[fresh], finding.places[fresh])
