"""Probe `probe-cost`: says which kind of step the scheduler runs, and shows in /server_info what the probes took."""

from __future__ import annotations

from time import sleep
from typing import Any

from gemma4_runtime.cost import IDLE, LEDGER, Ledger, timed
from gemma4_runtime.errors import VerificationFailed
from gemma4_runtime.patch import How

KEY = "gemma4_triage_cost"
"""Of an internal state in /server_info."""


def before_run_batch(scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
    """Run before `Scheduler.run_batch`."""
    LEDGER.begin_step(batch.forward_mode.name.lower())


def before_idle(scheduler: Any, **_unknown: Any) -> None:
    """Run before `Scheduler.on_idle`: an audit there is no part of the step before it."""
    LEDGER.kind = IDLE


def after_internal_state(result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """Run after `Scheduler.get_internal_state`, whose answer goes to /server_info."""
    result.internal_state[KEY] = LEDGER.document()


def self_test() -> None:
    """Time a hook around a function that waits, and count the hook's time only.

    Raises:
        VerificationFailed: the wait was counted, or the hook was not.
    """
    ledger = Ledger()
    ledger.begin_step("decode")
    timed("probe-cost", How.AROUND, lambda original: original(), ledger)(lambda: sleep(0.01))
    (own_ns,) = ledger.own_ns.values()
    if not 0 < own_ns < 10_000_000 or ledger.steps["decode"] != 1:
        raise VerificationFailed(f"probe-cost: self test: {ledger.document()}")
