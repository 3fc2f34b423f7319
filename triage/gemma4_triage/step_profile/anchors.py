"""Where steps begin on a device: candidates for that, from graph launches, from named spans, from repetition.

| method | a step begins where | used if |
|---|---|---|
| `annotation` | the first launch of a ProfilerStep span does | there are two such spans |
| `graph` | a CUDA graph does: the kind of graph that takes most GPU time | it is launched twice |
| `span` | the first launch of SGLang's step[DECODE bs=8] does | there are two of the mode that takes most GPU time |
| `pattern` | a kernel does that comes once per repetition of the whole sequence | at least 90% of the launches repeat |
| `whole` | the first launch does | nothing above fits |
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from gemma4_triage.step_profile.kernel_families import family_of
from gemma4_triage.step_profile.trace_tables import NO_CORRELATION, Device, Launches, Numbers, Span, TraceTables

METHODS = ("annotation", "graph", "span", "pattern", "whole")
_LIKE = 0.5
_REPEATS = 0.9
_MOST_LAGS = 24
_SIZES = re.compile(r"\s*\b(?:bs|toks)=\d+")


class Anchor(NamedTuple):
    """One candidate for what begins a step.

    Attributes:
        kind: equal for what is launched again and again.
        gpu_us: the time of its launches on the GPU.
        rows: its own launches in the order of time; others may run in between.
        label: what the trace calls it; may be empty.
    """

    kind: str
    gpu_us: float
    rows: Numbers
    label: str = ""

    @property
    def first(self) -> int:
        return int(self.rows[0])


def graph_anchors(launches: Launches, spans: Sequence[Span], device: Device) -> list[Anchor]:
    """Return the CUDA graphs of a device: launches with one correlation are one graph's.

    A kind is which kernels the graph has, and how many of each: kernels of parallel branches come in another order each
    time.
    """
    kinds: dict[bytes, str] = {}
    names = _SpanNames(span for span in spans if span.device is None and span.rank == device.rank)
    found = []
    for rows in _graphs(launches):
        kind = kinds.setdefault(np.sort(launches.name[rows]).tobytes(), f"graph {len(kinds) + 1}")
        label = names.around(float(launches.called_from_us[rows[0]]))
        found.append(Anchor(kind, launches.part(rows).busy_us, rows, label))
    return sorted(found, key=lambda anchor: anchor.first)


def span_anchors(launches: Launches, spans: Iterable[Span], device: Device, prefix: str) -> list[Anchor]:
    """Spans on the device itself if there are any, else what was called within those of the host."""
    named = [span for span in spans if span.rank == device.rank and span.name.startswith(prefix)]
    on_device = [span for span in named if span.device == device]
    times = launches.start_us if on_device else launches.called_from_us
    order = np.argsort(times, kind="stable")
    ordered = times[order]
    found: dict[int, Anchor] = {}
    for span in on_device or [span for span in named if span.device is None]:
        rows = np.sort(order[np.searchsorted(ordered, span.start_us) : np.searchsorted(ordered, span.end_us, "right")])
        if len(rows):
            kind = _SIZES.sub("", span.name) if prefix == "step[" else prefix
            found.setdefault(int(rows[0]), Anchor(kind, launches.part(rows).busy_us, rows, span.name))
    return [found[first] for first in sorted(found)]


def repeating_anchors(launches: Launches, names: Sequence[str]) -> list[Anchor]:
    """Occurrences of a kernel that comes once per repetition: of sampling if there is any, since that ends a step."""
    ids = launches.name
    counts = Counter(map(int, ids))
    sampled = [name for name in counts if family_of(names[name]) == "sampling"]
    candidates = sorted((counts[name], name) for name in sampled or counts if counts[name] > 1)
    for _, name in candidates[:_MOST_LAGS]:
        places = np.flatnonzero(ids == name)
        lag = int(np.median(np.diff(places)))
        if lag and lag <= len(ids) // 2 and float(np.mean(ids[:-lag] == ids[lag:])) >= _REPEATS:
            return [Anchor("repetition", 0.0, np.array([place])) for place in places]
    return []


def beginnings(anchors: Sequence[Anchor]) -> list[Anchor]:
    """Return those that begin a step: the kind with most GPU time, and kinds like it that stand in its place elsewhere.

    A draft's graph comes between two of the target's, so it begins no step. The target's graph of another batch size
    follows itself without the first kind in between, and does.
    """
    total: defaultdict[str, float] = defaultdict(float)
    for anchor in anchors:
        total[anchor.kind] += anchor.gpu_us
    if not total:
        return []
    first_kind = max(sorted(total), key=lambda kind: total[kind])
    usual = np.median([anchor.gpu_us for anchor in anchors if anchor.kind == first_kind])
    kinds = {first_kind}
    for previous, anchor in _neighbours(anchors, first_kind):
        if previous.kind == anchor.kind and min(previous.gpu_us, anchor.gpu_us) >= _LIKE * usual:
            kinds.add(anchor.kind)
    return [anchor for anchor in anchors if anchor.kind in kinds]


def method_anchors(tables: TraceTables, device: Device, method: str) -> list[Anchor]:
    """Return the beginnings of steps by one method; fewer than two are none."""
    launches = tables.devices[device]
    if method == "annotation":
        found = span_anchors(launches, tables.spans, device, "ProfilerStep#")
    elif method == "graph":
        found = beginnings(graph_anchors(launches, tables.spans, device))
    elif method == "span":
        found = beginnings(span_anchors(launches, tables.spans, device, "step["))
    elif method == "pattern":
        found = repeating_anchors(launches, tables.names)
    else:
        found = []
    # Two graphs on two streams may begin at once.
    apart = {float(launches.start_us[anchor.first]): anchor for anchor in reversed(found)}
    return [apart[start] for start in sorted(apart)] if len(apart) > 1 else []


def _neighbours(anchors: Sequence[Anchor], but: str) -> Iterable[tuple[Anchor, Anchor]]:
    """Yield an anchor and the next one of its kind, if none of the kind `but` lies between."""
    latest: dict[str, Anchor] = {}
    for anchor in anchors:
        if anchor.kind == but:
            latest = {}
        elif anchor.kind in latest:
            yield latest[anchor.kind], anchor
        latest[anchor.kind] = anchor


def _graphs(launches: Launches) -> Iterable[Numbers]:
    """Rows of each graph launch, in the order of time. A call without a graph launches once."""
    order = np.argsort(launches.correlation, kind="stable")
    values, starts, sizes = np.unique(launches.correlation[order], return_index=True, return_counts=True)
    graph = (sizes > 1) | launches.graph[order[starts]]
    for start, size in zip(
        starts[graph & (values != NO_CORRELATION)], sizes[graph & (values != NO_CORRELATION)], strict=True
    ):
        yield order[start : start + size]


class _SpanNames:
    """What SGLang called the step that the host was in."""

    _DEEPEST = 8

    def __init__(self, spans: Iterable[Span]) -> None:
        self._spans = [span for span in spans if span.name.startswith("step[")]
        self._starts = [span.start_us for span in self._spans]

    def around(self, time_us: float) -> str:
        """Return the name of the span that began last of those around this time; "" if there is none."""
        # bisect finds no place for NaN, which is the time of a call that is not in the trace.
        end = bisect_right(self._starts, time_us) if time_us == time_us else 0
        around = (span for span in reversed(self._spans[max(0, end - self._DEEPEST) : end]) if span.end_us >= time_us)
        return next((span.name for span in around), "")
