"""Kernels per call or replay, by name, counted in a profiler's trace."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def count_launches(call: Callable[[int], Any], calls: int) -> int:
    """Kernels on the device in call(0) .. call(calls - 1), eagerly. Raises as `kernels_in` does."""
    call(0)

    def run() -> None:
        for number in range(calls):
            call(number)

    return kernels_in(run).total()


def kernels_in(run: Callable[[], Any]) -> Counter[str]:
    """Count the kernels on the device in one run, by name; a graph that is replayed there counts each of its kernels.

    Copies and fills that are no kernels are left out.

    Raises:
        RuntimeError: the trace has none, because the profiler sees no device activity here.
    """
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        run()
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        kernels = kernels_of(json.loads(path.read_text()))
    if not kernels:
        raise RuntimeError("the profiler's trace has no kernel: it may not see the device here")
    return kernels


def kernels_of(trace: dict[str, Any]) -> Counter[str]:
    """Kernels in a Chrome trace of torch's profiler, by name."""
    return Counter(event["name"] for event in trace["traceEvents"] if event.get("cat") == "kernel")
