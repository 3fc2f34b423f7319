"""Times of arms as CUDA graphs: all layers in a row, buffers in turn, arms interleaved."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

Call = Callable[[int], Any]
# Buffers go round until they are several times a Hopper's L2 cache, or there is one for each call.
ROTATED_BYTES = 256 << 20
WARM_UP_ROUNDS = 3
MIN_ROUNDS = 5


class Recorded(NamedTuple):
    """A graph, and the call that it was captured from, whose closure owns tensors that the graph reads.

    Both live equally long: torch.cuda.graph returns what nobody owns to the driver when the next graph is captured, and
    a replay that touches it is an illegal memory access.
    """

    graph: torch.cuda.CUDAGraph
    call: Call


class DeviceLost(Exception):
    """An arm ended this process's use of the device; nothing more can be measured in it. str: what CUDA said."""

    def __init__(self, arm: str, why: str) -> None:
        super().__init__(why)
        self.arm = arm


def device_answers() -> bool:
    """Return False after an error that CUDA repeats at every call, such as an illegal memory access."""
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def sets_for(moved_bytes: int, calls: int) -> int:
    """Say how many sets of buffers a graph of `calls` takes in turn."""
    return max(1, min(calls, math.ceil(ROTATED_BYTES / max(1, moved_bytes))))


def capture(call: Call, calls: int, sets: int) -> Recorded:
    """Capture a graph of call(0) .. call(calls - 1).

    Results live until as many as there are sets have followed, so that an arm that allocates its outputs rotates them
    too.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for number in range(2):
            call(number)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph, kept = torch.cuda.CUDAGraph(), [None] * sets
    # On the stream of the warm-up, whose memory a kernel may have prepared there.
    with torch.cuda.graph(graph, stream=stream):
        for number in range(calls):
            kept[number % sets] = call(number)
    return Recorded(graph, call)


def interleaved(
    graphs: Mapping[str, torch.cuda.CUDAGraph], rounds: int, limit_s: float, replays: int = 1
) -> dict[str, list[float]]:
    """Return microseconds of a replay per arm and round, in rotating order; fewer rounds if `limit_s` is over.

    What `replays` does says replay_us.

    Raises:
        DeviceLost: a replay failed. Each is waited for, so it is that arm's.
    """
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    names, begin = list(graphs), time.monotonic()
    if not names:
        return samples
    for number in range(-WARM_UP_ROUNDS, rounds):
        if number >= MIN_ROUNDS and time.monotonic() - begin > limit_s:
            break
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            try:
                took_us = replay_us(graphs[name], replays)
            except RuntimeError as error:
                raise DeviceLost(name, f"replay: {first_line(error)}") from error
            if number >= 0:
                samples[name].append(took_us)
    return samples


def first_line(error: Exception) -> str:
    """Return its type and first line, at most 300 characters."""
    return f"{type(error).__name__}: {str(error).strip()[:300]}".splitlines()[0]


def replay_us(graph: torch.cuda.CUDAGraph, replays: int = 1) -> float:
    """Return the microseconds of one replay, waited for: the mean of so many `replays` in a row.

    With more than one, another goes before them, so that the host launches the first of them while the device is at
    work.
    """
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    if replays > 1:
        graph.replay()
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1000 / replays


def empty_kernel() -> Any:
    """Return a Triton kernel that does nothing, to be launched as `empty_kernel()[(1,)]()`."""
    # Here: a bench without CUDA only says so, and needs no Triton for that.
    import triton

    return triton.jit(_empty)


def _empty():
    pass
