"""Records of requests whose prompt was written over several lines: what a user wrote there is no word of a server's."""

from __future__ import annotations

from collections.abc import Sequence

from gemma4_triage.logs.late_pattern import pattern

_REQUEST = pattern(rb"\b(?:GenerateReqInput|EmbeddingReqInput|ChatCompletionRequest|CompletionRequest)\(")
_STAMPED = pattern(rb".{0,200}?\[20\d\d-\d\d-\d\d \d\d:\d\d:\d\d")
# With what an envelope has behind the message: the end of a string in JSON, of bytes in Python, a colour, a frame.
_CLOSED = pattern(
    rb"(?:['\"\]}]|=[\w.-]+)\)+(?:\s*|(?:\\[nr])*\"[^()]{0,300}|\\n',?|(?:\x1b\[[\d;]*m)+|\s+(?:\||\xe2\x94\x82))\s*$"
)
_ENDS = (b"')", b'")', b"])", b"})")
_MOST_LINES = 400
_TAIL = 400  # bytes


def _is_closed(line: bytes) -> bool:
    # Nearly all end so, and the search is slow.
    return line.endswith(_ENDS) or _CLOSED.search(line[-_TAIL:]) is not None


def without_prompts(text: bytes, numbers: Sequence[int]) -> tuple[bytes, list[int]]:
    """Return lines, of which those that go on a request's record are empty, and where a record is still open.

    Only as far as a line ends the record, ahead of the next with a stamp: one that was cut off goes on in nothing. What
    is still open may end in a line that stands in an envelope, or behind a stamp of something else: `without_rest`.

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
    still = [numbers[at] for at in opened if not _blanked(lines, numbers, at)]
    return (b"\n".join(lines) if len(still) < len(opened) else text), still


def without_rest(lines: list[bytes], numbers: Sequence[int], still: Sequence[int]) -> bool:
    """Empty the lines that go on records which `without_prompts` left open, and say whether there are any.

    Args:
        lines: as SGLang wrote them.
        numbers: of the lines in their log; several that came out of one envelope share theirs.
        still: the numbers of those in which a record begins.
    """
    begins = {number: at for at, number in enumerate(numbers) if number in still}
    return sum(_blanked(lines, numbers, at) for at in begins.values()) > 0


def _blanked(lines: list[bytes], numbers: Sequence[int], begin: int) -> bool:
    """Empty the lines that go on the record which begins in one of them, and say whether an end of it was found."""
    end = begin + 1
    while (
        end < min(len(lines), begin + _MOST_LINES)
        and numbers[end] <= numbers[end - 1] + 1
        and not _STAMPED.match(lines[end])
    ):
        end += 1
    last = next((at for at in range(end - 1, begin, -1) if _is_closed(lines[at])), begin)
    lines[begin + 1 : last + 1] = [b""] * (last - begin)
    return last > begin
