"""How long the reading of what somebody sent may take: one file of it, and all of it together."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_end: ContextVar[float] = ContextVar("_end", default=float("inf"))


@contextmanager
def until(end: float) -> Iterator[None]:
    """Let no clock that is made inside run beyond `end`, of time.monotonic()."""
    token = _end.set(min(end, _end.get()))
    try:
        yield
    finally:
        _end.reset(token)


class Clock:
    """Says when a reader has worked long enough on one file, or all readers together on all files."""

    def __init__(self, seconds: float = float("inf")) -> None:
        self._end = min(time.monotonic() + seconds, _end.get())

    @property
    def is_over(self) -> bool:
        """Return whether the time is up."""
        return time.monotonic() > self._end
