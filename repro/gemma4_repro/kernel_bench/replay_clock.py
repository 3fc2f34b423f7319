"""Times of arms as CUDA graphs: all layers in a row, buffers in turn, arms interleaved."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch

Call = Callable[[int], Any]
# Buffers go round until they are several times a Hopper's L2 cache, or there is one for each call.
ROTATED_BYTES = 256 << 20
WARM_UP_ROUNDS = 3
MIN_ROUNDS = 5


def sets_for(moved_bytes: int, calls: int) -> int:
    """How many sets of buffers a graph of `calls` takes in turn."""
    return max(1, min(calls, math.ceil(ROTATED_BYTES / max(1, moved_bytes))))


def capture(call: Call, calls: int, sets: int) -> torch.cuda.CUDAGraph:
    """A graph of call(0) .. call(calls - 1). Results live until as many as there are sets have followed, so that an arm
    that allocates its outputs rotates them too."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for number in range(2):
            call(number)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph, kept = torch.cuda.CUDAGraph(), [None] * sets
    with torch.cuda.graph(graph):
        for number in range(calls):
            kept[number % sets] = call(number)
    return graph


def interleaved(graphs: dict[str, torch.cuda.CUDAGraph], rounds: int, limit_s: float) -> dict[str, list[float]]:
    """Microseconds of a replay per arm and round, in rotating order; fewer rounds if `limit_s` is over."""
    samples: dict[str, list[float]] = {name: [] for name in graphs}
    names, begin = list(graphs), time.monotonic()
    for number in range(-WARM_UP_ROUNDS, rounds):
        if number >= MIN_ROUNDS and time.monotonic() - begin > limit_s:
            break
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            took_us = _replay_us(graphs[name])
            if number >= 0:
                samples[name].append(took_us)
    return samples


def _replay_us(graph: torch.cuda.CUDAGraph) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1000
