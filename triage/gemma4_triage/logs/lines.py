"""Chunks of bytes to lines, in bounded memory, the same wherever the chunks were cut."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress

import numpy as np

MAX_LINE_BYTES = 256 << 10
# Of larger ones the temporary arrays are mapped anew each time, which costs a tenth of the speed.
BLOCK_BYTES = 1 << 19
_NEWLINE = ord("\n")
DIGITS = b"0123456789"
# What a sieve remembers at most, beside the lines of one block.
_MOST_KNOWN_BYTES, _OF_AN_ENTRY = 4 << 20, 150


@dataclass(eq=False)
class Block:
    """Lines in a row, without their newlines.

    A line longer than MAX_LINE_BYTES keeps that many bytes and one more.

    Attributes:
        numbers: the number of each line in the log, from 1; lines that came out of one envelope share theirs.
        text: the lines, with a newline between them.
        whole: whether they ended in a newline; a torn line is a block of its own.
        long: how many of them were cut for their length.
        streams: which of several writers each line is from, by what stood before it; None where nothing did.
    """

    numbers: Sequence[int]
    text: bytes
    whole: bool = True
    long: int = 0
    streams: list[bytes] | None = None

    @cached_property
    def lines(self) -> list[bytes]:
        """Return the lines themselves, of which no block has none."""
        return self.text.split(b"\n")

    def with_lines(self, lines: list[bytes], numbers: Sequence[int], streams: list[bytes] | None) -> Block:
        """Return a block of other lines in place of these."""
        block = Block(numbers, b"\n".join(lines), self.whole, 0, streams)
        block.lines = lines
        return block


def blocks_of_lines(chunks: Iterable[bytes]) -> Iterator[Block]:
    """Yield every line of the chunks, once; blocks end where they would if all chunks were one."""
    number, rest = 1, b""
    for chunk in _even(chunks):
        text, newline, rest = (rest + chunk).rpartition(b"\n")
        # One byte more than is kept: so the line still counts as too long when its end comes.
        rest = rest[: MAX_LINE_BYTES + 1]
        if not newline:
            continue
        long = 0
        if _any_long(text):
            lines = text.split(b"\n")
            long = sum(len(line) > MAX_LINE_BYTES for line in lines)
            text = b"\n".join(line[: MAX_LINE_BYTES + 1] for line in lines)
        # Faster than bytes.count, which looks at one byte after the other.
        count = int(np.count_nonzero(np.frombuffer(text, dtype=np.uint8) == _NEWLINE)) + 1
        yield Block(range(number, number + count), text, long=long)
        number += count
    if rest:
        yield Block(range(number, number + 1), rest, whole=False, long=int(len(rest) > MAX_LINE_BYTES))


def _any_long(text: bytes) -> bool:
    at = 0
    while len(text) - at > MAX_LINE_BYTES:
        newline = text.rfind(b"\n", at, at + MAX_LINE_BYTES + 1)
        if newline < 0:
            return True
        at = newline + 1
    return False


def lines_with(mark: bytes, text: bytes, ends: list[int]) -> Iterator[int]:
    """Yield the index of each line of a text that has a mark.

    Args:
        mark: it holds no newline.
        text: lines, with a newline between them.
        ends: where the line behind each line begins.
    """
    at = text.find(mark)
    while at >= 0:
        line = bisect_right(ends, at)
        yield line
        at = text.find(mark, ends[line])


class Sieve:
    """Tells which lines may hold a mark, by what each is without its digits: a log says the same again and again.

    Args:
        marks: texts without a newline, looked for letter by letter.
        low_marks: in lower case, looked for in any case.
    """

    def __init__(self, marks: Iterable[bytes], low_marks: Iterable[bytes]) -> None:
        # A line that holds a mark holds, without its digits, the mark without its own.
        self._marks, self._low_marks = (
            list(dict.fromkeys(mark.translate(None, DIGITS) for mark in some)) for some in (marks, low_marks)
        )
        self._known: dict[bytes, bool] = {}
        self._size = 0

    def pick(self, lines: list[bytes]) -> list[int]:
        """Return the indices of all lines that hold a mark, and of some others."""
        bare = b"\n".join(lines).translate(None, DIGITS).split(b"\n") if lines else []
        if self._size > _MOST_KNOWN_BYTES:
            self._known.clear()
            self._size = 0
        if new := {line for line in bare if line not in self._known}:
            self._learn(new)
        return list(compress(range(len(bare)), map(self._known.__getitem__, bare)))

    def _learn(self, new: set[bytes]) -> None:
        text = b"\n".join(new)
        self._size += len(text) + _OF_AN_ENTRY * len(new)
        low = text.lower()
        marks = [mark for mark in self._marks if mark in text]
        low_marks = [mark for mark in self._low_marks if mark in low]
        for line in new:
            in_it = any(mark in line for mark in marks)
            if not in_it and low_marks:
                low = line.lower()
                in_it = any(mark in low for mark in low_marks)
            self._known[line] = in_it


def _even(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in chunks of BLOCK_BYTES, the last of them shorter."""
    held: list[bytes] = []
    size = 0
    for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size < BLOCK_BYTES:
            continue
        text = b"".join(held)
        for at in range(0, size - BLOCK_BYTES + 1, BLOCK_BYTES):
            yield text[at : at + BLOCK_BYTES]
        held = [text[size - size % BLOCK_BYTES :]]
        size = len(held[0])
    if size:
        yield b"".join(held)
