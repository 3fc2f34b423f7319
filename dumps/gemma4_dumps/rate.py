"""How many dumps a process may write in a minute."""

import time
from collections.abc import Callable


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
