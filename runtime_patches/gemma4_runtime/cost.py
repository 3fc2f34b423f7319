"""What probes cost the thread that they run on: the time in our own hook functions, per kind of scheduler step.

`GEMMA4_TRIAGE_COST=1` wraps every hook of every probe in a clock, and /server_info then has the totals. Around an
original function only our own part counts. It holds the host's time, kernel launches included; what a launched kernel
takes on the device, and what a hook costs others (caches, garbage), it does not hold. Nor the clocks themselves, whose
reading is measured at start and taken off; to a step they add two readings per call of a hook, four around an original.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import wraps
from itertools import pairwise
from statistics import median
from time import perf_counter_ns
from typing import Any

from gemma4_runtime.patch import How

OUTSIDE, IDLE = "outside a step", "idle"


def reading_ns(clock: Callable[[], int]) -> int:
    """Say what reading `clock` takes, in nanoseconds: on a virtual machine up to a microsecond. Median of many."""
    readings = [clock() for _ in range(1001)]
    return int(median(after - before for before, after in pairwise(readings)))


CLOCK_NS = reading_ns(perf_counter_ns)


class Ledger:
    """Totals of one process. kind: of the step that the scheduler began last, by SGLang's name of its forward mode."""

    def __init__(self) -> None:
        self.kind = OUTSIDE
        self.steps: Counter[str] = Counter()
        self.calls: Counter[tuple[str, str, str]] = Counter()
        self.own_ns: Counter[tuple[str, str, str]] = Counter()

    def begin_step(self, kind: str) -> None:
        self.kind = kind
        self.steps[kind] += 1

    def add(self, probe: str, hook: str, measured_ns: int, readings: int) -> None:
        """readings: of the clock, that lie within what was measured."""
        self.calls[self.kind, probe, hook] += 1
        self.own_ns[self.kind, probe, hook] += max(0, measured_ns - readings * CLOCK_NS)

    def document(self) -> dict[str, Any]:
        """{kind: {"steps": n, "probes": {id: {hook: {"calls": n, "own_us": microseconds}}}}}, for JSON."""
        found: dict[str, Any] = {}
        for (kind, probe, hook), own_ns in self.own_ns.items():
            entry = found.setdefault(kind, {"steps": self.steps[kind], "probes": {}})
            totals = {"calls": self.calls[kind, probe, hook], "own_us": own_ns / 1000}
            entry["probes"].setdefault(probe, {})[hook] = totals
        return found


LEDGER = Ledger()


def timed(probe: str, how: How, function: Callable[..., Any], ledger: Ledger = LEDGER) -> Callable[..., Any]:
    """`function`, a hook, with its own time added to `ledger` whenever it returns or raises."""
    if how is How.AROUND:
        return _timed_around(probe, function, ledger)

    @wraps(function)
    def hook(*args: Any, **kwargs: Any) -> Any:
        began = perf_counter_ns()
        try:
            return function(*args, **kwargs)
        finally:
            ledger.add(probe, function.__name__, perf_counter_ns() - began, 1)

    return hook


def _timed_around(probe: str, function: Callable[..., Any], ledger: Ledger) -> Callable[..., Any]:
    @wraps(function)
    def hook(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        inside, calls = 0, 0

        def call(*given: Any, **named: Any) -> Any:
            nonlocal inside, calls
            calls += 1
            left = perf_counter_ns()
            try:
                return original(*given, **named)
            finally:
                inside += perf_counter_ns() - left

        # wraps() itself would cost every call microseconds; the name is all that a hook reads.
        call.__name__ = getattr(original, "__name__", "original")
        began = perf_counter_ns()
        try:
            return function(call, *args, **kwargs)
        finally:
            ledger.add(probe, function.__name__, perf_counter_ns() - began - inside, 1 + calls)

    return hook
