"""How much of the GPU's memory processes hold, as the driver counts it: graphs, libraries and kernels included."""

from __future__ import annotations

from collections.abc import Iterable


def device_memory_of(processes: Iterable[int]) -> int | None:
    """Return the bytes of all GPUs that these processes hold; None if the driver does not say."""
    try:
        import pynvml
    except ImportError:
        return None
    wanted = set(processes)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        held = [
            process.usedGpuMemory
            for number in range(pynvml.nvmlDeviceGetCount())
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(number))
            if process.pid in wanted
        ]
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
    known = [bytes_held for bytes_held in held if bytes_held is not None]
    return sum(known) if known else None
