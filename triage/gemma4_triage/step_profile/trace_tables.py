"""What of a trace is kept: launches on the GPU as columns of numbers, the host's calls that caused them, step spans.

Times are microseconds: ts and dur of the Chrome format always are. Its displayTimeUnit says how a viewer shows them.
"""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_GPU_EVENTS = 4_000_000
"""40 bytes each, and a copy of that while they are sorted."""
_MAX_NAMES, _MAX_NAME = 50_000, 2000
_MAX_SPANS = 200_000
_MAX_DEVICES = 256
FURTHER_NAMES = "(further names)"

_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_HOST = frozenset({"cuda_runtime", "cuda_driver", "runtime", "driver", "hip_runtime"})
_SPANS = frozenset({"user_annotation", "gpu_user_annotation"})
# cudaLaunchKernel, cuLaunchKernelEx, cudaGraphLaunch, cudaMemcpyAsync, hipMemsetAsync
_CAUSES_WORK = re.compile(r"\A(?:cuda|cu|hip)\w*(?:Launch|Memcpy|Memset)")
# cudaStreamSynchronize, cuEventSynchronize, hipDeviceSynchronize
_WAITS = re.compile(r"\A(?:cuda|cu|hip)\w*Synchronize\Z")
# CUPTI's and ROCm's names of a copy to memory that is not pinned: the call that starts it returns when it has ended.
_BLOCKING_COPY = re.compile(r"\bDtoH\b.*\bPageable\b|\bDeviceToHost\b.*\bPageable\b", re.IGNORECASE)
COPY = "copy to pageable memory"
# torch synchronises after such a copy, in the same operation: the two are one wait.
_SAME_OPERATION_US = 50.0
# torch's read of one value: of a tensor on the host it waits for nothing, of one on a GPU it makes such a call.
_READ = "aten::_local_scalar_dense"
_OPS = "cpu_op"
# Of ProfilerMerger (SGLang): "[TP00] 0" is process 0 of the rank TP00.
_RANK = re.compile(r"\A(\[[^\]]*\]) ")
_STEP_SPAN = re.compile(r"\A(?:ProfilerStep#\d+|step\[.*\])\Z")
NO_CORRELATION = -1

Numbers = NDArray[Any]


class TooManyEvents(Exception):
    """The trace holds more than is kept of one: what, in words."""


class Device(NamedTuple):
    """rank: as in a merged trace, else "". index: the device's number, as the trace says it."""

    rank: str
    index: str

    @property
    def title(self) -> str:
        return f"{self.rank} GPU {self.index}".strip()


class Span(NamedTuple):
    """A step that somebody named. device: None on the host. end_us: of the annotation itself."""

    name: str
    rank: str
    device: Device | None
    start_us: float
    end_us: float


@dataclass(frozen=True)
class Launches:
    """What one device ran, by start. Columns of equal length.

    Attributes:
        name: into TraceTables.names.
        correlation: NO_CORRELATION if the trace does not say.
        called_from_us, called_us: when the host's call that caused it began and ended; NaN if that is not in the trace.
        graph: by cudaGraphLaunch.
    """

    start_us: Numbers
    end_us: Numbers
    name: Numbers
    stream: Numbers
    correlation: Numbers
    called_from_us: Numbers
    called_us: Numbers
    graph: Numbers

    def __len__(self) -> int:
        return len(self.start_us)

    @property
    def busy_us(self) -> float:
        """Return each launch's time by itself; those that run at the same time count twice."""
        return float((self.end_us - self.start_us).sum())

    def part(self, chosen: Numbers | slice) -> Launches:
        return Launches(*(getattr(self, column)[chosen] for column in Launches.__dataclass_fields__))


class Wait(NamedTuple):
    """A wait of the host for a GPU, in a call of this name.

    In a read of a value the name is the read's. For a copy to memory that is not pinned the wait is from the copy's
    beginning: in the call after it, or if there is none as COPY.
    """

    name: str
    rank: str
    start_us: float
    duration_us: float


@dataclass
class Counts:
    """Events of the file. malformed: of a GPU, without a usable time, and left out."""

    total: int = 0
    gpu: int = 0
    host_calls: int = 0
    step_spans: int = 0
    host_waits: int = 0
    ignored: int = 0
    malformed: int = 0


@dataclass(frozen=True)
class TraceTables:
    names: tuple[str, ...]
    devices: dict[Device, Launches]
    spans: tuple[Span, ...]
    waits: tuple[Wait, ...]
    counts: Counts


_Thread = tuple[str, str, str]
"""Rank, process, thread."""


@dataclass
class _Columns:
    start: array = field(default_factory=lambda: array("d"))
    duration: array = field(default_factory=lambda: array("d"))
    name: array = field(default_factory=lambda: array("i"))
    stream: array = field(default_factory=lambda: array("i"))
    correlation: array = field(default_factory=lambda: array("q"))


@dataclass
class _Calls:
    correlation: array = field(default_factory=lambda: array("q"))
    start: array = field(default_factory=lambda: array("d"))
    end: array = field(default_factory=lambda: array("d"))
    graph: array = field(default_factory=lambda: array("b"))
    thread: array = field(default_factory=lambda: array("i"))


def read_tables(events: Iterable[Any]) -> TraceTables:
    """Read events in any order. Raises TooManyEvents."""
    builder = _Builder()
    for event in events:
        builder.add(event)
    return builder.tables()


class _Builder:
    def __init__(self) -> None:
        self._counts = Counts()
        self._ids: dict[str, int] = {}
        self._streams: dict[str, int] = {}
        self._devices: dict[Device, _Columns] = {}
        self._calls: dict[str, _Calls] = {}
        self._spans: list[Span] = []
        self._waits: list[tuple[_Thread, Wait]] = []
        self._reads: dict[_Thread, list[tuple[float, float]]] = {}
        self._threads: dict[_Thread, int] = {}

    def add(self, event: Any) -> None:
        self._counts.total += 1
        kind = str(event.get("cat", "")).lower() if isinstance(event, dict) else ""
        if kind in _GPU:
            self._add_launch(event)
        elif kind in _HOST and _CAUSES_WORK.match(str(event.get("name"))):
            self._add_call(event)
        elif (kind in _HOST and _WAITS.match(str(event.get("name")))) or (kind == _OPS and event.get("name") == _READ):
            self._add_wait(event)
        elif kind in _SPANS and _STEP_SPAN.match(str(event.get("name"))):
            self._add_span(event, on_gpu=kind.startswith("gpu"))
        else:
            self._counts.ignored += 1

    def tables(self) -> TraceTables:
        # Numbers in the order of names: which event came first in the file then changes nothing.
        names, name_places = _in_order(self._ids)
        _, stream_places = _in_order(self._streams)
        devices = {
            device: _launches(columns, self._calls.get(device.rank, _Calls()), name_places, stream_places)
            for device, columns in sorted(self._devices.items())
        }
        spans = tuple(sorted(self._spans, key=lambda span: (span.start_us, -span.end_us, span.name)))
        waits = tuple(sorted(self._named_waits(names, devices)))
        return TraceTables(names, devices, spans, waits, self._counts)

    def _add_launch(self, event: dict[str, Any]) -> None:
        times, name = _times(event), event.get("name")
        if times is None or not isinstance(name, str) or event.get("ph", "X") != "X":
            self._counts.malformed += 1
            return
        self._counts.gpu += 1
        if self._counts.gpu > MAX_GPU_EVENTS:
            raise TooManyEvents(f"{MAX_GPU_EVENTS} launches on GPUs")
        arguments = _arguments(event)
        columns = self._devices.setdefault(_device(event, arguments), _Columns())
        if len(self._devices) > _MAX_DEVICES:
            raise TooManyEvents(f"{_MAX_DEVICES} GPUs")
        columns.start.append(times[0])
        columns.duration.append(times[1])
        columns.name.append(self._id(name))
        stream = str(arguments.get("stream", event.get("tid", "")))[:40]
        columns.stream.append(self._streams.setdefault(stream, len(self._streams)))
        columns.correlation.append(_correlation(arguments))

    def _add_call(self, event: dict[str, Any]) -> None:
        times, correlation = _times(event), _correlation(_arguments(event))
        if times is None or correlation == NO_CORRELATION:
            self._counts.ignored += 1
            return
        self._counts.host_calls += 1
        if self._counts.host_calls > MAX_GPU_EVENTS:
            raise TooManyEvents(f"{MAX_GPU_EVENTS} calls of the host")
        calls = self._calls.setdefault(_rank(event), _Calls())
        calls.correlation.append(correlation)
        calls.start.append(times[0])
        calls.end.append(times[0] + times[1])
        calls.graph.append("GraphLaunch" in event["name"])
        calls.thread.append(self._threads.setdefault(_thread(event), len(self._threads)))

    def _add_span(self, event: dict[str, Any], on_gpu: bool) -> None:
        times = _times(event)
        if times is None or len(self._spans) == _MAX_SPANS:
            self._counts.ignored += 1
            return
        self._counts.step_spans += 1
        device = _device(event, _arguments(event)) if on_gpu else None
        self._spans.append(Span(event["name"][:_MAX_NAME], _rank(event), device, times[0], times[0] + times[1]))

    def _add_wait(self, event: dict[str, Any]) -> None:
        times = _times(event)
        if times is None:
            self._counts.ignored += 1
            return
        self._counts.host_waits += 1
        if self._counts.host_waits > MAX_GPU_EVENTS:
            raise TooManyEvents(f"{MAX_GPU_EVENTS} waits of the host")
        thread = _thread(event)
        if event["name"] == _READ:
            self._reads.setdefault(thread, []).append((times[0], times[0] + times[1]))
        else:
            self._waits.append((thread, Wait(event["name"], thread[0], *times)))

    def _named_waits(self, names: tuple[str, ...], devices: dict[Device, Launches]) -> Iterator[Wait]:
        """Reads of one thread never overlap, so the last that begins before a wait is the one that may hold it."""
        reads = {thread: sorted(found) for thread, found in self._reads.items()}
        for thread, wait in _with_copies(self._waits, self._blocking_copies(names, devices)):
            of_thread = reads.get(thread, [])
            place = bisect_right(of_thread, (wait.start_us, math.inf)) - 1
            inside = place >= 0 and wait.start_us <= of_thread[place][1]
            yield wait._replace(name=_READ) if inside else wait

    def _blocking_copies(self, names: tuple[str, ...], devices: dict[Device, Launches]) -> list[tuple[_Thread, Wait]]:
        """Return the calls that copied to memory that is not pinned."""
        blocking = [number for number, name in enumerate(names) if _BLOCKING_COPY.search(name)]
        threads, found = list(self._threads), []
        for device, launches in devices.items():
            calls = self._calls.get(device.rank)
            if calls is None or not blocking:
                continue
            copies = launches.correlation[np.isin(launches.name, blocking) & (launches.correlation != NO_CORRELATION)]
            for place in np.flatnonzero(np.isin(np.array(calls.correlation, np.int64), copies)):
                start = calls.start[place]
                found.append((threads[calls.thread[place]], Wait(COPY, device.rank, start, calls.end[place] - start)))
        return found

    def _id(self, name: str) -> int:
        name = name[:_MAX_NAME]
        if name not in self._ids and len(self._ids) >= _MAX_NAMES:
            name = FURTHER_NAMES
        return self._ids.setdefault(name, len(self._ids))


def _with_copies(
    waits: Sequence[tuple[_Thread, Wait]], copies: Sequence[tuple[_Thread, Wait]]
) -> Iterator[tuple[_Thread, Wait]]:
    """Yield a copy, and the call of its operation that waits once more, as one wait by that call's name."""
    copy: tuple[_Thread, Wait] | None = None
    for thread, wait in sorted([*waits, *copies], key=lambda found: (found[0], found[1].start_us, found[1].name)):
        if copy is not None:
            end_us = copy[1].start_us + copy[1].duration_us
            if copy[0] == thread and wait.name != COPY and wait.start_us - end_us <= _SAME_OPERATION_US:
                start_us = copy[1].start_us
                wait = Wait(wait.name, wait.rank, start_us, wait.start_us + wait.duration_us - start_us)
            else:
                yield copy
            copy = None
        if wait.name == COPY:
            copy = (thread, wait)
        else:
            yield thread, wait
    if copy is not None:
        yield copy


def _in_order(ids: dict[str, int]) -> tuple[tuple[str, ...], Numbers]:
    """(the names sorted, per id its place among them)."""
    names = sorted(ids)
    places = np.zeros(len(names), np.int32)
    places[[ids[name] for name in names]] = np.arange(len(names))
    return tuple(names), places


def _launches(columns: _Columns, calls: _Calls, name_places: Numbers, stream_places: Numbers) -> Launches:
    start, duration = np.array(columns.start), np.array(columns.duration)
    name, stream = name_places[np.array(columns.name)], stream_places[np.array(columns.stream)]
    correlation = np.array(columns.correlation)
    # By every column, so that events of one time come in one order whatever the file's was.
    order = np.lexsort((correlation, name, stream, duration, start))
    correlation = correlation[order]
    called_from, called, graph = _called(correlation, calls)
    start = start[order]
    return Launches(start, start + duration[order], name[order], stream[order], correlation, called_from, called, graph)


def _called(correlation: Numbers, calls: _Calls) -> tuple[Numbers, Numbers, Numbers]:
    """Return per launch (begin, end, by a graph launch) of the call of its correlation; NaN, NaN, False if none."""
    known = np.array(calls.correlation, np.int64)
    nothing = np.full(len(correlation), np.nan)
    if not len(known):
        return nothing, nothing.copy(), np.zeros(len(correlation), bool)
    begin, end, graph = np.array(calls.start), np.array(calls.end), np.array(calls.graph, bool)
    order = np.lexsort((end, begin, known))
    known, begin, end, graph = known[order], begin[order], end[order], graph[order]
    place = np.minimum(np.searchsorted(known, correlation), len(known) - 1)
    found = (known[place] == correlation) & (correlation != NO_CORRELATION)
    return np.where(found, begin[place], np.nan), np.where(found, end[place], np.nan), found & graph[place]


def _times(event: dict[str, Any]) -> tuple[float, float] | None:
    """(start, duration) in microseconds; None unless both are numbers that a clock can give."""
    start, duration = event.get("ts"), event.get("dur")
    for value in (start, duration):
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e18:
            return None
    assert start is not None
    assert duration is not None
    return (float(start), float(duration)) if duration >= 0 and math.isfinite(start) else None


def _arguments(event: dict[str, Any]) -> dict[str, Any]:
    arguments = event.get("args")
    return arguments if isinstance(arguments, dict) else {}


def _correlation(arguments: dict[str, Any]) -> int:
    value = arguments.get("correlation")
    if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 62:
        return value
    return NO_CORRELATION


def _thread(event: dict[str, Any]) -> _Thread:
    return (_rank(event), str(event.get("pid")), str(event.get("tid")))


def _rank(event: dict[str, Any]) -> str:
    match = _RANK.match(str(event.get("pid", "")))
    return match[1] if match else ""


def _device(event: dict[str, Any], arguments: dict[str, Any]) -> Device:
    """Return the device: a GPU's events have its number as their pid, and as an argument."""
    pid = str(event.get("pid", "")).removeprefix(_rank(event)).strip()
    return Device(_rank(event), str(arguments.get("device", pid))[:40])
