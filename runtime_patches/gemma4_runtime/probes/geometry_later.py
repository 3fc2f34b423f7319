"""Probe `geometry`, while a server serves: whether what its layers are bound to is what it was at the start.

| hook                           | when                                                                               |
|--------------------------------|------------------------------------------------------------------------------------|
| before get_next_batch_to_run   | before each step in `trap`, where one stops ahead of the access; every EVERY_STEPS |
|                                | steps in `log` and `contain`                                                       |
| before on_idle                 | every IDLE_EVERY_S                                                                 |
| before a violation's dump      | whatever probe found it: in the step of a change it may follow from that           |

Found is which pool and buffers a layer reads, with which window and by which scales, and the windows by which the
scheduler and the prefix cache go, from the first look on at which there is one; the rules are in `checks/bindings.py`.
A change is a dump, and in `trap` the end. It is told once: what it is then counts as known.

Cost: identities, addresses and numbers, nothing of a device: about 3 us for each attention layer of target and draft
together at each look, which `python tests/tools/time_bindings.py` prints; every 64 steps that is 2 us a step at 46
layers (one core of a shared machine, SGLang 0.5.23).
"""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gemma4_runtime import binding_facts as facts
from gemma4_runtime import current
from gemma4_runtime.by_identity import ByIdentity
from gemma4_runtime.checks.bindings import Bound, check_unchanged, check_windows
from gemma4_runtime.checks.violation import Violation
from gemma4_runtime.probes.geometry import RULE, finding_draft, models_of
from gemma4_runtime.settings import Mode
from gemma4_runtime.steps import step_number

EVERY_STEPS, IDLE_EVERY_S = 64, 0.25
_NEXT, _IDLE = "Scheduler.get_next_batch_to_run", "Scheduler.on_idle"
_AT_VIOLATION = "another probe's violation"


@dataclass
class _Known:
    """The models of a scheduler, what their layers were bound to, and when that was looked at last."""

    models: tuple[facts.Model, ...]
    bound: tuple[Bound, ...]
    steps: int = 0
    idle_again: float = 0.0
    windows: dict[str, int] = field(default_factory=dict)


_KNOWN: ByIdentity[_Known] = ByIdentity()


def after_model_workers(result: Any, scheduler: Any, **_unknown: Any) -> None:
    """Keep, once all workers exist, what each layer of target and draft is bound to."""
    models = models_of(scheduler)
    _KNOWN.put(scheduler, _Known(models, facts.bound_now(models)))
    server = weakref.ref(scheduler)
    current.guard().look_first.append(lambda: _before_a_dump(server()))


def _before_a_dump(scheduler: Any) -> None:
    """Look before another violation becomes a dump: in the step of a change it may follow from that."""
    known = None if scheduler is None else _KNOWN.get(scheduler)
    if known is not None:
        _look(scheduler, known, _AT_VIOLATION, Mode.LOG)


def before_next_batch(scheduler: Any, **_unknown: Any) -> None:
    """Look before `Scheduler.get_next_batch_to_run`. Raises TrappedViolation."""
    known = _KNOWN.get(scheduler)
    if known is None:
        return
    known.steps += 1
    if not known.windows:
        # The prefix cache is made after the workers.
        known.windows = facts.windows_now(scheduler)
    if known.steps % EVERY_STEPS == 0 or current.guard().mode.at(in_graph=False) is Mode.TRAP:
        _look(scheduler, known, _NEXT)


def before_idle(scheduler: Any, **_unknown: Any) -> None:
    """Look before `Scheduler.on_idle`. Raises TrappedViolation."""
    known, now = _KNOWN.get(scheduler), time.monotonic()
    if known is not None and now >= known.idle_again:
        known.idle_again = now + IDLE_EVERY_S
        _look(scheduler, known, _IDLE)


def _look(scheduler: Any, known: _Known, site: str, act: Mode | None = None) -> None:
    now, windows = facts.bound_now(known.models), facts.windows_now(scheduler) if known.windows else {}
    if now == known.bound and windows == known.windows:
        return
    found = [*check_unchanged(known.bound, now), *check_windows(known.windows, windows)]
    known.bound, known.windows = now, windows
    guard, runner = current.guard(), scheduler.tp_worker.model_runner
    step = int(getattr(scheduler, "forward_ct", 0)) or step_number()
    for finding in found:
        others = [other for other in found if other is not finding]
        describe = partial(finding_draft, finding, others, site, runner, step)
        # No index is at fault, so none is listed.
        violation, where = Violation(finding.verdict, (), 0), f"{site} ({finding.what})"
        guard.report(violation, RULE, where, describe, act=act, key=(finding.role,))
