"""Records of requests whose prompt was written over several lines: what a user wrote there is no word of a server's."""

from __future__ import annotations

import re
from collections.abc import Sequence

_REQUEST = re.compile(rb"\b(?:GenerateReqInput|EmbeddingReqInput|ChatCompletionRequest|CompletionRequest)\(")
_STAMPED = re.compile(rb".{0,200}?\[20\d\d-\d\d-\d\d \d\d:\d\d:\d\d")
_CLOSED = re.compile(rb"(?:['\"\]}]|=[\w.-]+)\)+\s*$")
_MOST_LINES = 400
_TAIL = 400  # bytes


def _is_closed(line: bytes) -> bool:
    return _CLOSED.search(line[-_TAIL:]) is not None


def without_prompts(text: bytes, numbers: Sequence[int]) -> bytes:
    """Return lines, of which those that go on a request's record are empty.

    Only where a line ends the record, as the last one before the next with a stamp: one that was cut off goes on in
    nothing.

    Args:
        text: the lines, with a newline between.
        numbers: of the lines in their log, of which some may be missing here.
    """
    lines = text.split(b"\n")
    opened = [
        at
        for at, line in enumerate(lines)
        # Plain words first: most lines have none, and the search is slow.
        if (b"ReqInput(" in line or b"CompletionRequest(" in line) and not _is_closed(line) and _REQUEST.search(line)
    ]
    for begin in opened:
        end = begin + 1
        while (
            end < min(len(lines), begin + _MOST_LINES)
            and numbers[end] == numbers[begin] + end - begin
            and not _STAMPED.match(lines[end])
        ):
            end += 1
        last = next((at for at in range(end - 1, begin, -1) if lines[at].strip()), begin)
        if last > begin and _is_closed(lines[last]):
            lines[begin + 1 : last + 1] = [b""] * (last - begin)
    return b"\n".join(lines) if opened else text
