"""Probe `leak-ledger`, when to look: at idle before SGLang's own checker, before a flush, and every N scheduler steps.

A server whose requests wait while none runs and none holds anything is looked at as an idle one: what a leak or a lock
that was left over keeps from it is all that it waits for, and no step comes that would be looked at.

The audit runs between two steps of the scheduler's loop: at `get_next_batch_to_run` the results of the step before are
processed and nothing of the next is allocated. With overlap scheduling one batch is then in flight; its pages were
handed out and its requests' lengths raised when it was scheduled, so nothing of it is exempt. A server of which the
audit cannot tell all holders (disaggregation, pipeline stages, HiCache, HiSparse, mamba) is not audited, and says so.

With `dump` the server goes on: SGLang's idle checker fails on what the audit has just explained, and that failure is
logged instead of raised; any other passes.

What the ledger costs a step: an append per allocator call, one clone of a few slots where a view is freed (page size 1
also where it is handed out), no synchronisation; every 1024 events or 65,536 slots (16,384 at page size 1) one
concatenation and one copy to pinned memory. They are folded into the ledger in one go on the scheduler's thread once
they have arrived: the same few dozen numpy calls however many events there are, over what says anything new of a page
only, so most steps do none of it and one in many does all. What that comes to, per step and at its longest,
`python tests/tools/bench_leak_ledger.py` prints for 1, 16 and 64 requests.
An audit copies free lists, tree values, rows and the mapping to the host and waits for them: O(pool).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gemma4_runtime import current
from gemma4_runtime.checks.page_census import Fault, Whereabouts, check_census
from gemma4_runtime.checks.page_events import FULL, Events, Kind, PageRows
from gemma4_runtime.checks.page_ledger import PageLedger, Site
from gemma4_runtime.checks.swa_mapping_census import SlotPairs, check_mapping
from gemma4_runtime.errors import VerificationFailed
from gemma4_runtime.leak.auditor import Auditor, auditor_of
from gemma4_runtime.leak.event_log import EventLog
from gemma4_runtime.leak.whereabouts import REQUEST_SLOTS
from gemma4_runtime.settings import Leak


def before_run_batch(scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """Run before `Scheduler.run_batch`: one more step."""
    auditor = auditor_of(scheduler.token_to_kv_pool_allocator)
    auditor.ledger.step += 1
    auditor.ran()


def before_next_batch(scheduler: Any, **_unknown: Any) -> None:
    """Run before `Scheduler.get_next_batch_to_run`, where no step is half done."""
    auditor = auditor_of(scheduler.token_to_kv_pool_allocator)
    auditor.idle = None
    every = current.settings().leak_every
    if every:
        auditor.at_step(scheduler, every)
    auditor.ledger.log.pump()


def before_idle(scheduler: Any, **_unknown: Any) -> None:
    """Run before `Scheduler.on_idle`, which checks SGLang's own equation."""
    auditor = auditor_of(scheduler.token_to_kv_pool_allocator)
    if scheduler.is_fully_idle():
        auditor.idle = scheduler
        auditor.ran()
        auditor.at_idle(scheduler, "idle")
    elif auditor.stands_still(scheduler):
        auditor.at_idle(scheduler, "standstill")


def before_flush(scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """Run before `Scheduler.flush_cache`, after which nothing could be told any more."""
    if scheduler.is_fully_idle():
        auditor_of(scheduler.token_to_kv_pool_allocator).at_idle(scheduler, "flush_cache")


def around_report_leak(original: Callable[..., Any], checker: Any, pool_name: str, token_msg: str) -> Any:
    """Run around SGLang's `_report_leak`, which raises ValueError about its pool equation.

    Idle pools are not audited at each of its checks, so that it may see first what is wrong.
    """
    auditor = auditor_of(checker.token_to_kv_pool_allocator)
    if not auditor.explains("full", "swa"):
        auditor.anew("idle")
    return _unless_explained(
        auditor, auditor.explains("full", "swa"), ValueError, original, checker, pool_name, token_msg
    )


def around_check_req_pool(original: Callable[..., Any], checker: Any) -> Any:
    """Run around SGLang's `_check_req_pool`, which raises ValueError about request slots."""
    auditor = auditor_of(checker.token_to_kv_pool_allocator)
    return _unless_explained(auditor, auditor.explains(REQUEST_SLOTS), ValueError, original, checker)


def around_check_tree(original: Callable[..., Any], checker: Any) -> Any:
    """Run around SGLang's `_check_tree_cache`, which raises a plain Exception about locks that outlived a request."""
    auditor = auditor_of(checker.token_to_kv_pool_allocator)
    return _unless_explained(auditor, auditor.explains_locks(), Exception, original, checker)


def _unless_explained(
    auditor: Auditor, explained: bool, kind: type[Exception], check: Callable[..., Any], *args: Any
) -> Any:
    try:
        return check(*args)
    except Exception as error:
        # Exactly what SGLang's checker raises: a subclass is something else that went wrong inside of it.
        if type(error) is not kind or not explained or current.settings().leak is not Leak.DUMP:
            raise
        auditor.let_pass(check.__name__, error)
        return None


def self_test() -> None:
    """Fire on one planted case of each fault, stay silent on a clean pool. Pages of 16 in pools of 6 and 4 pages.

    Raises:
        VerificationFailed: a check no longer tells them apart.
    """
    free, held = np.array([4, 5, 6]), [np.array([1]), np.array([2, 3])]
    pairs = SlotPairs(np.array([16, 17, 32]), np.array([16, 17, 0]), np.array([True, True, False]))
    spare = np.array([2, 3, 4])
    ledger = PageLedger(6, 16, np.arange(1, 7))
    _fold(ledger, Kind.HANDED_OUT, 16, 17)
    found = {
        "clean pool": _census(free, held),
        "clean mapping": [f.fault for f in check_mapping(pairs, spare, 4, 16)],
        "clean history": _fold(ledger, Kind.HANDED_OUT, 18),
        Fault.NOWHERE: _census(free[1:], held),
        Fault.FREE_TWICE: _census(np.append(free, 4), held),
        Fault.FREE_AND_HELD: _census(np.append(free, 2), held),
        Fault.HELD_TWICE: _census(free, [*held, np.array([1])]),
        Fault.OUT_OF_RANGE: _census(np.append(free, 0), held),
        Fault.UNMAPPED: [f.fault for f in check_mapping(_live(pairs), spare, 4, 16)],
        Fault.STALE_MAPPING: [f.fault for f in check_mapping(pairs, np.array([1, 2]), 4, 16)],
        Fault.HANDED_OUT_IN_USE: [Fault.HANDED_OUT_IN_USE for _ in _fold(ledger, Kind.HANDED_OUT, 16)],
        Fault.FREED_AGAIN: [Fault.FREED_AGAIN for _ in _fold(ledger, Kind.FREED, 32)],
    }
    for case, faults in found.items():
        if faults != ([case] if isinstance(case, Fault) else []):
            raise VerificationFailed(f"leak-ledger: self test: {case}: {faults}")


def _fold(ledger: PageLedger, kind: Kind, *slots: int) -> list[int]:
    """Pages that one event over `slots` found in the wrong state."""
    chunks: list[Events] = []
    log = EventLog(chunks.append, ledger.page_size)
    log.add(kind, FULL, Site.UNKNOWN, 0, torch.tensor(slots))
    log.drain()
    (events,) = chunks
    rows = PageRows.of(events, np.array([0]), FULL, ledger.pages)
    return ledger.fold(rows, events.site, events.step).page.tolist()


def _census(free: np.ndarray, held: list[np.ndarray]) -> list[Fault]:
    return [finding.fault for finding in check_census(Whereabouts("full", 6, free, held=held))]


def _live(pairs: SlotPairs) -> SlotPairs:
    return SlotPairs(pairs.full, pairs.swa, np.ones_like(pairs.live))
