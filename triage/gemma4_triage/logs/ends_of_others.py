"""Ends of a container or a shell's job that are not this server's: another service's, or those of an older server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gemma4_triage.logs.facts import Place
from gemma4_triage.logs.late_pattern import pattern

_OF_COMPOSE = pattern(rb"(?:container )?([\w.-]{1,100}) exited with code -?\d+(?: \(restarting\))?\s*$")
_OF_A_SHELL = pattern(
    rb"\[\d+\][+-]? +(?:\d+ )?(?:Killed|Segmentation fault|Aborted|Bus error|Terminated|Exit \d+)\b|Killed\s*$|"
    rb"\S{1,200}: line \d+: +\d+ (?:Killed|Segmentation fault|Aborted|Bus error)\b"
)
_WRITER = pattern(rb"([\w.@-]{1,100}) *\|")
_MOST_NAMES, _MOST_HELD, _LOOKED_AT = 64, 16, 200


class Held(NamedTuple):
    """A line that tells of an end, of which what follows says whose it was.

    Attributes:
        kind: of alarm.
        line: as it stands.
        rank: which scheduler wrote it.
        place: where it stands.
        of_older: whether nothing of a server stands before it.
        name: of the container that ended; empty where the line names none.
    """

    kind: str
    line: bytes
    rank: str
    place: Place
    of_older: bool
    name: bytes


class EndsOfOthers:
    """Holds such lines back until a server works behind them; then they are no failure of this server's."""

    def __init__(self) -> None:
        self._names: set[bytes] = set()
        self._held: list[Held] = []
        self._seen = self._started = False

    def writers(self, lines: list[bytes], streams: Iterable[bytes]) -> None:
        """Take note of the containers that write what a server writes, of lines with its stamp."""
        found = {stream for line, stream in zip(lines[:_LOOKED_AT], streams, strict=False) if line[:2] == b"[2"}
        if len(self._names) < _MOST_NAMES:
            self._names.update(match[1] for stream in found if (match := _WRITER.match(stream)))

    def begins(self) -> None:
        """Take note that a server begins."""
        self._seen = self._started = True

    def holds(self, kind: str, line: bytes, rank: str, place: Place) -> bool:
        """Say whether a line is held back: it may be of another."""
        named = _OF_COMPOSE.match(line)
        if len(self._held) >= _MOST_HELD or (named is None and _OF_A_SHELL.match(line) is None):
            return False
        of_older, name = not self._seen, named[1] if named else b""
        if not of_older and not name:
            return False
        self._held.append(Held(kind, line, rank, place, of_older, name))
        return True

    def works(self) -> None:
        """Take note of a server's work, and forget what it shows to be another's end."""
        self._seen = True
        if self._held:
            self._held = [one for one in self._held if not self._is_of_another(one)]

    def _is_of_another(self, one: Held) -> bool:
        if one.of_older and self._started:
            return True
        # Older releases of compose put the project before the name where it ends.
        return bool(one.name and self._names) and not one.name.endswith(tuple(self._names))

    def standing(self) -> Iterator[Held]:
        """Yield what was held back and stays an end of this server, as far as anybody knows."""
        held, self._held = self._held, []
        yield from held
