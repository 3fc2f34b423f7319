"""How much a dump store may hold, and how many dumps a process may write in a minute."""

import time
from collections.abc import Callable
from dataclasses import dataclass

MIB = 1024**2


@dataclass(frozen=True, kw_only=True)
class StoreCaps:
    """Caps of a store; age_days alone spares the first and latest of a signature.

    Attributes:
        bytes_per_dump: never exceeded, as are total_bytes and count.
        logged_per_minute: how many dumps one process may write while it serves on; more violations than that are
            counted.
    """

    bytes_per_dump: int = 10 * MIB
    total_bytes: int = 1024 * MIB
    count: int = 64
    age_days: float = 14.0
    logged_per_minute: int = 120


DEFAULT_CAPS = StoreCaps()


class RateLimit:
    """A bucket of `per_minute` tokens, full at first, that fills up again evenly."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._tokens = float(per_minute)
        self._filled_s = clock()

    def admits(self) -> bool:
        """Take a token; False if there is none."""
        now_s = self._clock()
        self._tokens += (now_s - self._filled_s) * self._per_minute / 60
        self._tokens, self._filled_s = min(self._tokens, float(self._per_minute)), now_s
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
