"""The prefix that SGLang writes before each line: "[2026-11-21 16:51:32 DP0 TP1]" (utils/common.py, configure_logger).

Before 0.4.2 it had no date: "[16:51:32 TP1]".
"""

from __future__ import annotations

import re
from collections import deque
from datetime import UTC, datetime
from typing import NamedTuple

_STAMP = re.compile(rb"\[((?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d)(?:[.,]\d+)?((?: [A-Z_]+\d+)*)\]")
_LONGEST_RANK = 80
_MOST_KNOWN = 256


class Stamp(NamedTuple):
    """When a line was written, and which scheduler wrote it.

    Attributes:
        text: date and time as the server's clock had them, whose zone the log does not say; "" if there is none.
        rank: which scheduler; "" if the server has only one.
    """

    text: str
    rank: str

    @property
    def time_s(self) -> float | None:
        """The time in seconds, to be subtracted from another's; None if the text is no date."""
        try:
            return datetime.fromisoformat(self.text).replace(tzinfo=UTC).timestamp()
        except ValueError:
            return None


NO_STAMP = Stamp("", "")


class StampReader:
    """Remembers stamps: a log repeats each one many times."""

    def __init__(self) -> None:
        self._known: dict[bytes, Stamp] = {}

    def read(self, line: bytes, end: int) -> Stamp:
        """Return the last stamp before byte `end`; NO_STAMP if there is none."""
        if end >= 2 and line.startswith(b"] ", end - 2):
            # The usual case: it stands right before.
            known = self._known.get(line[line.rfind(b"[", 0, end) : end - 1])
            if known is not None:
                return known
            usual = _STAMP.match(line)
            if usual is not None and usual.end() == end - 1 and len(usual[2]) <= _LONGEST_RANK:
                return self._keep(*usual.group(0, 1, 2))
        last = deque(_STAMP.finditer(line, 0, end), maxlen=1)
        if not last or len(last[0][2]) > _LONGEST_RANK:
            return NO_STAMP
        return self._keep(*last[0].group(0, 1, 2))

    def _keep(self, whole: bytes, text: bytes, rank: bytes) -> Stamp:
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        found = self._known[whole] = Stamp(text.decode().replace(" ", "T"), rank.decode().strip())
        return found
