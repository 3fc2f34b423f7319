"""Requests that came in behind the last sign that a server works: behind its last batch line and its last answer.

`--log-requests` writes a line as a request comes in, and one as it has been answered. uvicorn writes of a request once
it is answered, some proxies as it comes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gemma4_triage.logs.facts import Place, Unserved
from gemma4_triage.logs.values_asked import BY_A_PROBE

_COMES, _ENDS = b"Receive: obj=", b"Finish: obj="
_POSTED, _UNANSWERED = b'"POST /', (b' HTTP/1.1"', b' HTTP/1.0"', b' HTTP/2.0"')
_AS_THEY_COME = tuple(end + b"\n" for end in _UNANSWERED)
# A refusal is an answer too. Of GETs this one alone asks the scheduler.
_ANSWERED = re.compile(rb'"(?:POST /\S*|GET /health_generate) HTTP/\d(?:\.\d)?" [24]')

_LONGEST = 200  # characters


class ReceivedReader:
    """Feed it what stands beside batch lines, in order; it keeps what came in behind the last work."""

    def __init__(self) -> None:
        self._count = self._worked = 0
        self._first: tuple[int, bytes] = (0, b"")
        self._last: tuple[int, bytes] = (0, b"")
        self._answered = False

    def works(self, number: int) -> None:
        """Take note of a line that only a working scheduler writes."""
        self._worked = max(self._worked, number)
        if number > self._last[0]:
            self._count = 0

    def block(self, text: bytes, lines: Sequence[bytes], numbers: Sequence[int]) -> None:
        """Read lines that are no batch lines.

        Args:
            text: all of them, with a newline between.
            lines: each.
            numbers: of each in its log.
        """
        if not (self._count or _COMES in text or any(end in text for end in _AS_THEY_COME)):
            return
        came: list[tuple[int, bytes]] = []
        # From the end: of a busy server the last work is near, and what stands before it is of no interest.
        for number, line in zip(reversed(numbers), reversed(lines), strict=True):
            if number <= self._worked:
                break
            if (_COMES in line and BY_A_PROBE not in line) or (_POSTED in line and line.endswith(_UNANSWERED)):
                came.append((number, line))
            elif _ENDS in line or _ANSWERED.search(line):
                self._worked, self._count, self._answered = number, 0, True
                break
        if came:
            self._first = self._first if self._count else came[-1]
            self._last = came[0]
            self._count += len(came)

    def unserved(self, place: Callable[[int, bytes], Place]) -> Unserved | None:
        """Return what came in and nothing followed; None if there is nothing.

        Args:
            place: makes the place of a line, of its number and its text.
        """
        if not self._count:
            return None
        number, line = self._first
        text = line[:_LONGEST].decode(errors="replace").strip()
        return Unserved(self._count, place(number, line), place(*self._last), text, self._answered)
