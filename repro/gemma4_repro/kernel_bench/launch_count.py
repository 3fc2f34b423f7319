"""Kernels per call, counted in a profiler's trace."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def count_launches(call: Callable[[int], Any], calls: int) -> int:
    """Kernels on the device in call(0) .. call(calls - 1), eagerly; copies and fills that are no kernels are left out.

    Raises:
        RuntimeError: the trace has none, because the profiler sees no device activity here.
    """
    call(0)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for number in range(calls):
            call(number)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        kernels = kernels_of(json.loads(path.read_text()))
    if kernels == 0:
        raise RuntimeError("the profiler's trace has no kernel: it may not see the device here")
    return kernels


def kernels_of(trace: dict[str, Any]) -> int:
    """Kernels in a Chrome trace of torch's profiler."""
    return sum(event.get("cat") == "kernel" for event in trace["traceEvents"])
