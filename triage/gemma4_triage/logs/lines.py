"""Chunks of bytes to lines, in bounded memory, the same wherever the chunks were cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

MAX_LINE_BYTES = 256 << 10
BLOCK_BYTES = 1 << 20


class Block(NamedTuple):
    """Lines in a row, without their newlines, and the text that they are cut from.

    A line longer than MAX_LINE_BYTES keeps that many bytes and one more.

    Attributes:
        numbers: the number of each line in the log, from 1; lines that came out of one envelope share theirs.
        text: what the lines are cut from.
        lines: the lines themselves.
        whole: whether they ended in a newline; a torn line is a block of its own.
        long: how many of them were cut for their length.
        streams: which of several writers each line is from, by what stood before it; None where nothing did.
    """

    numbers: Sequence[int]
    text: bytes
    lines: list[bytes]
    whole: bool = True
    long: int = 0
    streams: list[bytes] | None = None


def blocks_of_lines(chunks: Iterable[bytes]) -> Iterator[Block]:
    """Every line of the chunks, once; blocks end where they would if all chunks were one."""
    number, rest = 1, b""
    for chunk in _even(chunks):
        text = rest + chunk
        lines = text.split(b"\n")
        # One byte more than is kept: so the line still counts as too long when its end comes.
        rest = lines.pop()[: MAX_LINE_BYTES + 1]
        long = sum(len(line) > MAX_LINE_BYTES for line in lines) if len(text) > MAX_LINE_BYTES else 0
        if long:
            lines = [line[: MAX_LINE_BYTES + 1] for line in lines]
            text = b"\n".join(lines)
        if lines:
            yield Block(range(number, number + len(lines)), text, lines, long=long)
            number += len(lines)
    if rest:
        yield Block(range(number, number + 1), rest, [rest], whole=False, long=int(len(rest) > MAX_LINE_BYTES))


def _even(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in chunks of BLOCK_BYTES, the last of them shorter."""
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
