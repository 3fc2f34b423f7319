"""Counters by which the programs of one launch find out which of them is the last: 0 before a launch and after it."""

from __future__ import annotations

import torch

MOST = 4096
"""Counters that a launch may use."""
_COUNTERS: dict[tuple[torch.device, int], torch.Tensor] = {}


def tickets(device: torch.device) -> torch.Tensor:
    """Return MOST counters that are 0 when the kernel starts, which has to leave them at 0.

    A stream has its own, because kernels of one stream follow each other; one that starts early must wait for the end
    of the kernel ahead before it counts. A graph that is captured on a stream on which nothing ran before sets new ones
    to 0 in each replay.
    """
    key = device, torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    counters = _COUNTERS.get(key)
    if counters is None:
        counters = torch.zeros(MOST, dtype=torch.int32, device=device)
        if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            _COUNTERS[key] = counters
    return counters
