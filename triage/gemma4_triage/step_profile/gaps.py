"""Time in which a device runs nothing: how much, where, and whether it waits for the host."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gemma4_triage.step_profile.steps import Step
from gemma4_triage.step_profile.trace_tables import NO_CORRELATION, Launches, Numbers

_LARGEST = 5


class Gap(NamedTuple):
    """The gaps between launches of two names.

    Attributes:
        largest_us: the length of the largest.
        count: how many there are.
        idle_us: the length of all of them.
        before: the name of the launch that ended last before the gap.
        after: the name of the launch that ends the gap; -1 where the trace ends.
    """

    largest_us: float
    count: int
    idle_us: float
    before: int
    after: int


@dataclass
class Idle:
    """The time in which no launch runs, in the chosen steps together.

    What is neither the host's nor a graph's is launch latency, or not known.

    Attributes:
        idle_us: the length of all gaps.
        host_us: the part of gaps that waits for the host: a launch ends the gap whose call had not returned when the
            gap began, and counts up to that return.
        in_graph_us: the length of gaps between two launches of one graph, which no host is part of.
        count: how many gaps there are.
        called_known: how many of them end in a launch of which the time of the call is known.
        busy_us: for each step, the time in which at least one launch runs.
        pairs: the gaps by the names of the launches around them; -1 where the trace ends.
    """

    idle_us: float = 0
    host_us: float = 0
    in_graph_us: float = 0
    count: int = 0
    called_known: int = 0
    busy_us: list[float] = field(default_factory=list)
    pairs: dict[tuple[int, int], list[float]] = field(default_factory=dict)

    def largest(self) -> list[Gap]:
        """Return the largest gap of each pair of neighbours, the largest first."""
        ranked = sorted(self.pairs.items(), key=lambda item: (-max(item[1]), item[0]))
        return [Gap(max(sizes), len(sizes), sum(sizes), *pair) for pair, sizes in ranked[:_LARGEST]]


def find_idle(launches: Launches, steps: Iterable[Step]) -> Idle:
    """busy_us: per step, at which time at least one launch runs."""
    idle = Idle()
    # Over the whole trace: what began in one step may still run in the next.
    reached = np.maximum.accumulate(launches.end_us)
    last_to_end = _last_to_end(launches.end_us, reached)
    for step in steps:
        _add_step(idle, launches, step, reached, last_to_end)
    return idle


def _add_step(idle: Idle, launches: Launches, step: Step, reached: Numbers, last_to_end: Numbers) -> None:
    rows = slice(step.first, step.last)
    starts = np.append(launches.start_us[step.first + 1 : step.last], step.end_us)
    ends = np.minimum(reached[rows], step.end_us)
    gaps = np.maximum(starts - ends, 0.0)
    idle.busy_us.append(step.wall_us - float(gaps.sum()))
    found = np.flatnonzero(gaps > 0)
    after = found + 1 + step.first
    # Of the launch that is the next step's first there is a row too, but for the last step of a trace.
    there = np.minimum(after, len(launches) - 1)
    before = last_to_end[rows][found]
    one_graph = (launches.correlation[before] == launches.correlation[there]) & (after == there)
    one_graph &= launches.correlation[before] != NO_CORRELATION
    called = np.where(after == there, launches.called_us[there], np.nan)
    waited = np.clip(called - ends[found], 0.0, gaps[found])
    known = ~np.isnan(waited)
    idle.count += len(found)
    idle.idle_us += float(gaps.sum())
    idle.in_graph_us += float(gaps[found][one_graph].sum())
    idle.host_us += float(waited[known & ~one_graph].sum())
    idle.called_known += int(known.sum())
    names_after = np.where(after == there, launches.name[there], -1)
    for size, *pair in zip(gaps[found].tolist(), launches.name[before].tolist(), names_after.tolist(), strict=True):
        idle.pairs.setdefault((pair[0], pair[1]), []).append(size)


def _last_to_end(ends: Numbers, reached: Numbers) -> Numbers:
    """Return per row which row up to it ends last."""
    return np.maximum.accumulate(np.where(ends >= reached, np.arange(len(ends)), 0))
