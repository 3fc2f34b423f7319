"""Steps of one device: cut at their beginnings, and the ones that are alike chosen."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemma4_triage.step_profile.anchors import METHODS, Anchor, method_anchors
from gemma4_triage.step_profile.trace_tables import Device, Launches, TraceTables

_OF_MEDIAN = 0.1
WHOLE = "whole"


@dataclass(frozen=True)
class Step:
    """Everything that starts from start_us to before end_us, which is where the next step begins.

    first, last: rows, last excluded. anchor: None if the step is the whole trace.
    """

    start_us: float
    end_us: float
    first: int
    last: int
    anchor: Anchor | None

    @property
    def launches(self) -> int:
        return self.last - self.first

    @property
    def wall_us(self) -> float:
        return self.end_us - self.start_us


@dataclass(frozen=True)
class Cut:
    """A trace cut into steps.

    Attributes:
        chosen: steps of one kind, which everything is said about.
        left_out: why, and how many steps.
        before, after: launches outside every whole step; the last step has no end, so it is not whole.
    """

    method: str
    chosen: tuple[Step, ...]
    left_out: dict[str, int]
    before: int
    after: int


def cut_steps(tables: TraceTables, device: Device, method: str | None = None) -> Cut:
    """method: one of METHODS; None: the first of them that finds two beginnings. Without two the trace is one step."""
    launches = tables.devices[device]
    for wanted in (method,) if method else METHODS:
        anchors = method_anchors(tables, device, wanted)
        if anchors:
            return _chosen(wanted, launches, anchors)
    end_us = float(launches.end_us.max())
    whole = Step(float(launches.start_us[0]), end_us, 0, len(launches), None)
    return Cut(WHOLE, (whole,), {}, 0, 0)


def _chosen(method: str, launches: Launches, anchors: Sequence[Anchor]) -> Cut:
    rows = [anchor.first for anchor in anchors]
    starts = launches.start_us[rows]
    # A launch of the same instant as a step's first one belongs to that step, whatever the order of equal times.
    rows = np.searchsorted(launches.start_us, starts, side="left").tolist()
    steps = [
        Step(float(starts[i]), float(starts[i + 1]), rows[i], rows[i + 1], anchors[i]) for i in range(len(anchors) - 1)
    ]
    left_out: Counter[str] = Counter()
    groups: dict[tuple[str, str], list[Step]] = defaultdict(list)
    for step in steps:
        assert step.anchor is not None
        label = step.anchor.label if method != "annotation" else ""
        groups[step.anchor.kind, label].append(step)
    alike = max(groups.values(), key=lambda group: (len(group), sum(step.launches for step in group)))
    left_out["of another kind"] += len(steps) - len(alike)
    usual = sorted(step.launches for step in alike)[len(alike) // 2]
    chosen = [step for step in alike if abs(step.launches - usual) <= _OF_MEDIAN * usual]
    left_out[f"not within {_OF_MEDIAN:.0%} of {usual} launches"] += len(alike) - len(chosen)
    kept = {why: count for why, count in left_out.items() if count}
    return Cut(method, tuple(chosen), kept, rows[0], len(launches) - rows[-1])
