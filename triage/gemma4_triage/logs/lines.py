"""Chunks of bytes to lines, in bounded memory, wherever the chunks were cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

MAX_LINE_BYTES = 256 << 10


class Block(NamedTuple):
    """Lines in a row, without their newlines, and the text that they are cut from.

    A line longer than MAX_LINE_BYTES keeps that many bytes and one more, so that a reader can tell.

    Attributes:
        first: the number of the first line, from 1.
        text: what the lines are cut from.
        lines: the lines themselves.
        whole: whether they ended in a newline; a torn line is a block of its own.
    """

    first: int
    text: bytes
    lines: list[bytes]
    whole: bool = True


def blocks_of_lines(chunks: Iterable[bytes]) -> Iterator[Block]:
    """Every line of the chunks, once."""
    number, rest = 1, b""
    for chunk in chunks:
        text = rest + chunk
        lines = text.split(b"\n")
        rest = lines.pop()[: MAX_LINE_BYTES + 1]
        if max(map(len, lines), default=0) > MAX_LINE_BYTES:
            lines = [line[: MAX_LINE_BYTES + 1] for line in lines]
        if lines:
            yield Block(number, text, lines)
            number += len(lines)
    if rest:
        yield Block(number, rest, [rest], whole=False)
