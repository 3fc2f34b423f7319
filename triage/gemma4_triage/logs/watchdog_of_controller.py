"""The watchdog of a process that only starts others fired: whether the schedulers went on says if anything hung."""

from __future__ import annotations

from datetime import datetime

from gemma4_triage.finding import Confidence
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern

_OF_CONTROLLER = pattern(r"(?i)DataParallelController watchdog|data_parallel_controller.{0,40}watchdog")
_IN_CONTROLLER = pattern(r"(?:\S*/)?data_parallel_controller\.py")
_OUTLIVED = (
    "a longer --watchdog-timeout on that node, or a later release, whose controller of nodes behind the first has no "
    "watchdog or feeds it (SGLang 20766)",
    "look for no hang in NCCL, in kernels or in the model: the line and the stack are not of a scheduler",
)


def only_the_controller(facts: LogFacts, death: Death) -> tuple[str, Confidence, tuple[str, ...]] | None:
    """Return what to say where the controller of data parallelism, and no scheduler, made its watchdog fire."""
    if _OF_CONTROLLER.search(death.message) is None:
        return None
    if any(not any(map(_IN_CONTROLLER.match, stack.frames)) for stack in facts.stacks):
        return None
    worked = _seconds_before(facts, death)
    if worked is None:
        return (
            "The watchdog of the data-parallel controller fired, which only starts schedulers and waits for their end; "
            "no scheduler's line here says whether it hung too.",
            Confidence.POSSIBLE,
            ("see whether the schedulers of this node went on with batches: then it is a false alarm", *_OUTLIVED[:1]),
        )
    return (
        "The watchdog of the data-parallel controller fired, while schedulers of that node went on with batches, the "
        f"last {worked:.0f} s before: nothing hung. That process waits for the end of its children, and nothing "
        "feeds its watchdog.",
        Confidence.LIKELY,
        _OUTLIVED,
    )


_MOST = 60  # seconds, less than any watchdog waits


def _seconds_before(facts: LogFacts, death: Death) -> float | None:
    """Return how long before the watchdog a scheduler wrote a batch line; None if none did within a minute."""
    try:
        fired = datetime.fromisoformat(death.place.time)
        rows = (row for rank in facts.schedulers for row in zip(rank.series["line"], rank.series["time"], strict=True))
        before = [datetime.fromisoformat(time) for line, time in rows if line and time and line < death.place.line]
    except ValueError:
        return None
    passed = [(fired - one).total_seconds() for one in before]
    return min((one for one in passed if 0 <= one <= _MOST), default=None)
