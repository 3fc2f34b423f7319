"""When a scheduler is audited, what of it is news, and what has been explained already."""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gemma4_runtime import current
from gemma4_runtime.by_identity import ByIdentity
from gemma4_runtime.checks.page_census import Fault, Finding
from gemma4_runtime.leak.audit import Audit, CannotAudit, audit
from gemma4_runtime.leak.ledger import LeakLedger, ledger_of
from gemma4_runtime.leak.report import report
from gemma4_runtime.release.ranks import pipeline_stages
from gemma4_runtime.release.requests import current_batch, held
from gemma4_runtime.whole_file import write_whole

logger = logging.getLogger(__name__)
TALLIES = "audits"
_refused: set[int] = set()
"""Processes whose tally was refused by the disk, and that have said so. A fork says it for itself."""
IDLE_EVERY_S, IDLE_SHARE = 0.25, 0.02
"""How often idle pools are audited where no event has come, and the most that this may take of idle time: what changes
a free list or the mapping from outside leaves no event."""
STANDSTILL_S = 1.0
"""How long requests wait while none runs before that is more than a pause between two batches."""


@dataclass
class Auditor:
    """Audits the pools of one allocator.

    Attributes:
        ledger: Of the allocator.
        latest: The latest audit.
        runs: How many, by site.
        found: Pages by verdict.
        passed: Failures of SGLang's own checks that did not stop the server, by check.
        cannot: Why there is no audit; empty if there is one.
        idle: The scheduler while it is idle, until it looks for work again.
    """

    ledger: LeakLedger
    latest: Audit | None = None
    runs: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    passed: Counter[str] = field(default_factory=Counter)
    cannot: str | None = None
    idle: Any = None
    _waits_since: float | None = None
    _said: dict[str, str] = field(default_factory=dict)
    _reported: set[tuple[Fault, str, int]] = field(default_factory=set)
    _events_at_idle: int = -1
    _idle_again: float = 0.0
    _step_at_busy: int = 0

    def at_idle(self, scheduler: Any, site: str) -> None:
        """Audit if anything has happened since the last idle audit, and from time to time where nothing has.

        Raises:
            TrappedViolation: see `report`.
        """
        began = time.monotonic()
        quiet = self._events_at_idle == self.ledger.log.count and began < self._idle_again
        if quiet or not self._readable(scheduler):
            return
        fresh, self._events_at_idle = self._events_at_idle != self.ledger.log.count, self.ledger.log.count
        try:
            self._run(scheduler, site, idle=True)
        finally:
            if fresh:
                self._write_tally()
            took = time.monotonic() - began
            self._idle_again = began + max(IDLE_EVERY_S, took / IDLE_SHARE)

    def ran(self) -> None:
        """Take note of a step, or of a server that waits for nothing: a standstill begins anew behind it."""
        self._waits_since = None

    def stands_still(self, scheduler: Any) -> bool:
        """Say whether requests have waited for STANDSTILL_S while none ran, and none has a row of its own."""
        staging = getattr(scheduler, "dllm_manager", None)
        if (
            not scheduler.waiting_queue
            or scheduler.chunked_req is not None
            or live_requests(scheduler)
            or (staging and staging.any_staging_reqs())
        ):
            self._waits_since = None
            return False
        now = time.monotonic()
        self._waits_since = now if self._waits_since is None else self._waits_since
        return now - self._waits_since >= STANDSTILL_S

    def anew(self, site: str) -> None:
        """Audit an idle scheduler once more: SGLang's own check has found what the latest audit did not.

        Raises:
            TrappedViolation: see `report`.
        """
        if self.idle is not None and self._readable(self.idle):
            self._run(self.idle, site, idle=True)

    def at_step(self, scheduler: Any, every: int) -> None:
        """Audit if `every` steps have passed. Raises TrappedViolation, see `report`."""
        if self.ledger.step - self._step_at_busy >= every and self._readable(scheduler):
            self._step_at_busy = self.ledger.step
            self._run(scheduler, "scheduler step", idle=False)

    def explains(self, *pools: str) -> bool:
        """Say whether the latest audit named pages of one of `pools`, by SGLang's count or in the tree."""
        return self.latest is not None and any(finding.pool in pools for finding in self.latest.findings)

    def explains_locks(self) -> bool:
        """Say whether the latest audit named locks in the prefix cache that nobody holds, or nodes that are wrong."""
        known = (Fault.LOCKED_AT_IDLE, Fault.TREE_BROKEN)
        return self.latest is not None and any(finding.fault in known for finding in self.latest.findings)

    def let_pass(self, check: str, error: Exception) -> None:
        """Note that SGLang's own checker failed and the server goes on; loudly, once per failure that says the same."""
        if self._said.get(check) != str(error):
            self._said[check] = str(error)
            logger.error("gemma4-triage: SGLang would stop here, and the leak audit has explained it: %s", error)
        self.passed[check] += 1

    def _readable(self, scheduler: Any) -> bool:
        if self.cannot is None:
            self.cannot = _exempt(scheduler) or ""
            if self.cannot:
                self._say_cannot()
        return not self.cannot

    def _run(self, scheduler: Any, site: str, idle: bool) -> None:
        settings, guard, before = current.settings(), current.guard(), self.latest
        try:
            self.latest = audit(
                scheduler.token_to_kv_pool_allocator,
                scheduler.req_to_token_pool,
                scheduler.tree_cache,
                live_requests(scheduler),
                idle,
            )
        except CannotAudit as error:
            self.cannot = str(error)
            self._say_cannot()
            return
        self.runs[site] += 1
        news = list(self._news(self.latest.findings))
        if news:
            for finding in news:
                self.found[finding.verdict] += finding.pages.size
            self._write_tally()
            report(self.latest, news, site, settings.leak, guard, before)

    def _news(self, findings: Iterable[Finding]) -> Iterator[Finding]:
        """Yield what was not reported before; what has gone, by a flush for example, may come again."""
        present = set()
        for finding in findings:
            keys = [(finding.fault, finding.pool, int(page)) for page in finding.pages]
            present.update(keys)
            fresh = np.array([key not in self._reported for key in keys])
            if fresh.any():
                yield Finding(finding.fault, finding.pool, finding.pages[fresh], finding.places[fresh])
        self._reported = present

    def _say_cannot(self) -> None:
        logger.error("gemma4-triage: leak-ledger: no audit on this server: %s", self.cannot)
        self._write_tally()

    def _write_tally(self) -> None:
        ledger, latest = self.ledger, self.latest
        write_tally(
            current.guard().root,
            {
                "audits": dict(self.runs),
                "steps": ledger.step,
                "events": ledger.log.count,
                "page_size": ledger.page_size,
                "pages": {name: pool.pages for name, pool in ledger.pools.items()},
                "findings": dict(self.found),
                "equations": [] if latest is None else [equation.text() for equation in latest.equations],
                "balanced": None if latest is None else all(equation.holds for equation in latest.equations),
                "let_pass": dict(self.passed),
                "cannot": self.cannot or None,
            },
        )


_AUDITORS: ByIdentity[Auditor] = ByIdentity()


def auditor_of(allocator: Any) -> Auditor:
    """Return the auditor of the scheduler that owns `allocator`."""
    return _AUDITORS.get(allocator) or _AUDITORS.put(allocator, Auditor(ledger_of(allocator)))


def live_requests(scheduler: Any) -> list[Any]:
    """Return every request that may hold a request slot, each once: in a batch, half prefilled, or waiting."""
    batches = [scheduler.running_batch, scheduler.last_batch, current_batch(scheduler)]
    batches += [batch for batch, _ in getattr(scheduler, "result_queue", ())]
    requests = [request for batch in batches if batch is not None for request in batch.reqs]
    requests += [scheduler.chunked_req] if scheduler.chunked_req is not None else []
    requests += scheduler.waiting_queue
    return list({id(request): request for request in requests if held(request).req_pool_idx is not None}.values())


def _exempt(scheduler: Any) -> str | None:
    """Say where pages are held by what an audit does not read."""
    if scheduler.disaggregation_mode.value != "null":
        return "prefill and decode are disaggregated"
    if pipeline_stages(scheduler) > 1:
        return "pipeline parallelism keeps several batches in flight"
    if scheduler.enable_hisparse:
        return "HiSparse moves pages to the host"
    return None


def write_tally(root: Path, tally: dict[str, Any]) -> None:
    """Replace `<root>/audits/<host>_p<pid>.json`, by which silence can be told from not having looked.

    A disk that refuses it is only logged, once per process.
    """
    process = os.getpid()
    path = root / TALLIES / f"{socket.gethostname()}_p{process}.json"
    try:
        write_whole(path, json.dumps({"schema_version": "1.0", "pid": process} | tally, indent=1))
    except OSError as error:
        if process not in _refused:
            _refused.add(process)
            logger.error("gemma4-triage: the audit's tally could not be written, now or later: %s", error)
