"""Text of a file that somebody sent, in lines and within limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gemma4_dumps.safe_file import as_unreadable
from gemma4_triage.readers.reading import MAX_SECONDS
from gemma4_triage.time_limit import Clock

MAX_TEXT_BYTES = 512 * 1024**2
LONGEST_LINE = 16 * 1024
_BYTES_BETWEEN_LOOKS = 64 * 1024


class Lines:
    """The lines of a file, one at a time. `problem` says why they ended before the file did, if they did."""

    def __init__(self, path: Path, max_bytes: int = MAX_TEXT_BYTES) -> None:
        self.problem = ""
        self._path, self._left, self._clock = path, max_bytes, Clock(MAX_SECONDS)

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Yield the number and the text of each line, cut at LONGEST_LINE. Raises DumpUnreadable."""
        number = unseen = 0
        with as_unreadable(self._path), open(self._path, "rb") as file:
            while line := file.readline(LONGEST_LINE):
                self._left -= len(line)
                unseen += len(line)
                # By bytes, because a few long lines may cost as much as many short ones.
                looks = unseen > _BYTES_BETWEEN_LOOKS
                unseen = 0 if looks else unseen
                if self._left < 0 or (looks and self._clock.is_over):
                    self.problem = "ends early: too large" if self._left < 0 else "ends early: it took too long"
                    return
                number += 1
                yield number, line.decode(errors="replace").rstrip("\r\n")
