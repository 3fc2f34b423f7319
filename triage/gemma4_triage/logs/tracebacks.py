"""Finds what a server's processes died of, line by line.

A log is full of tracebacks that somebody caught and wrote down. Those that end a process are introduced by SGLang's
workers ("Scheduler hit an exception:"), by multiprocessing ("Process x:") or by threading ("Exception in thread").
Of a chain each link is reported, the cause first.
"""

from __future__ import annotations

import re
from collections import deque

from gemma4_triage.logs.facts import Death, Place

TRACEBACK = b"Traceback (most recent call last):"
TORN = "the log ends inside its traceback"
_INTRODUCED = b"hit an exception: "
INTRODUCTIONS = (b"Process ", b"Exception in thread")
_CHAIN = (b"During handling of the above exception", b"The above exception was the direct cause")
_LAST_LINE = re.compile(r"(?:\w+\.)*([A-Za-z_]\w*)(?:: (.*))?")
_FRAME = re.compile(r'\s*File "([^"]*)", line (\d+), in (.*)')
_LONGEST_TRACEBACK = 2000  # lines
_LONGEST_MESSAGE = 2000  # characters
_FRAMES = 12


class TracebackReader:
    """Holds at most one traceback open; `inside` says whether the next lines belong to it."""

    def __init__(self) -> None:
        self.inside = False
        self._chained = False
        self._introduced = False
        self._rank = ""
        self._begin = Place(0)
        self._frames: deque[bytes] = deque(maxlen=_FRAMES)
        self._left = 0

    @property
    def watching(self) -> bool:
        """Say whether the next line has to be shown to `line`, whatever it holds."""
        return self.inside or self._chained or self._introduced

    def begin(self, line: bytes, rank: str, place: Place) -> bool:
        """A line with TRACEBACK in it. Returns whether the traceback is one that a process dies of."""
        introduced = _INTRODUCED in line or self._introduced or self._chained
        self._introduced = self._chained = False
        self.inside = introduced
        self._left = _LONGEST_TRACEBACK
        self._begin = place
        self._frames.clear()
        if _INTRODUCED in line or (introduced and not self._rank):
            self._rank = rank
        return introduced

    def torn(self) -> Death | None:
        """Return what the log ends inside of: a process died, of what is cut off; None if no traceback is open."""
        if not self.inside:
            return None
        return Death(self._begin, self._rank, "", TORN, tuple(map(_frame_text, self._frames)))

    def introduce(self, line: bytes) -> None:
        """A line with one of INTRODUCTIONS in it: where it begins with one, a traceback that follows is a death."""
        self._introduced = line.startswith(INTRODUCTIONS)

    def line(self, line: bytes) -> tuple[bool, Death | None]:
        """(whether the line belongs to a traceback or leads to one, what it ends in).

        Lines with a stamp are other processes': they are not shown here, and end nothing.
        """
        if self.inside:
            return True, self._body(line)
        if self._chained and line and not line.startswith(_CHAIN):
            self._chained = False
            self._rank = ""
        self._introduced = False
        return self._chained, None

    def _body(self, line: bytes) -> Death | None:
        self._left -= 1
        if self._left < 0:
            self.inside = False
            return None
        if not line or line[:1].isspace():
            if line.startswith(b'  File "'):
                self._frames.append(line)
            return None
        self.inside = False
        match = _LAST_LINE.fullmatch(line[: 4 * _LONGEST_MESSAGE].decode(errors="replace").rstrip("\r"))
        if match is None:
            return None
        self._chained = True
        message = (match[2] or "")[:_LONGEST_MESSAGE]
        return Death(self._begin, self._rank, match[1], message, tuple(map(_frame_text, self._frames)))


def _frame_text(line: bytes) -> str:
    match = _FRAME.match(line[:_LONGEST_MESSAGE].decode(errors="replace"))
    return "" if match is None else f"{match[1].rsplit('/', 1)[-1]}:{match[2]} {match[3].strip()}"
