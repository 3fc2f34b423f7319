"""A request of n tokens gives the slots of its last min(n, window), oldest first, one request after the other.

`req_to_token` has slots of the full pool; `mapping` leads from there to the sliding layers' pool. A slot that it does
not reach, -1 among them, stays as it is: a checker of the lists then finds it, where an index out of range would be a
read of whatever lies there.
"""

from __future__ import annotations

from typing import NamedTuple

from gemma4_kernels.rounding import Tolerance


class Case(NamedTuple):
    """requests of lengths 0 to `tokens`, the first and the last of them among them, and a window."""

    name: str
    requests: int
    tokens: int
    window: int
    interpreted: bool = True


CASES = (
    Case("no-requests", 0, 8, 4),
    Case("one-token", 1, 1, 1),
    Case("shorter-than-the-window", 3, 20, 31),
    Case("toy", 8, 96, 31),
    Case("a-piece-full", 2, 600, 256),
    Case("a-piece-and-one", 2, 600, 257),
    Case("more-requests-than-are-summed-at-a-time", 257, 8, 3),
    Case("serving", 64, 8192, 512, interpreted=False),
    Case("many", 1024, 4096, 1024, interpreted=False),
)

# What bench_window_lists.py measures: E2B's and E4B's window, and 26B's.
AXES = {"requests": (1, 16, 64, 256), "window": (512, 1024)}

TOLERANCES = {"lists": Tolerance(0, "integers, each written by one program")}
