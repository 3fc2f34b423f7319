"""Lines of a server log that say how it crashed. Anything more about logs is not diagnosis' business."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

MAX_LINE_CHARS = 500
MAX_LINES = 40


@dataclass(frozen=True)
class LogLine:
    """source: file name. number: counted from 1. kind: which signature."""

    source: str
    number: int
    kind: str
    text: str
    meaning: str


_SIGNATURES: tuple[tuple[str, re.Pattern[str], str], ...] = tuple(
    (kind, re.compile(pattern), meaning)
    for kind, pattern, meaning in (
        ("trapped", r"TrappedViolation", "a probe stopped the server before the access"),
        (
            "illegal-access",
            r"illegal memory access|IllegalAddress|invalid address space",
            "a kernel read or wrote outside its buffers",
        ),
        ("device-assert", r"device-side assert", "an index was outside a tensor on the device"),
        ("index-error", r"IndexError: ", "an index was outside a list or a tensor on the host"),
        (
            "size-mismatch",
            r"[Ss]ize of tensor a \(\d+\) must match the size of tensor b",
            "a copy between tensors of different sizes",
        ),
        (
            "spec-info",
            r"has no attribute '(merge|filter)_batch'",
            "a batch had a speculative state of another kind",
        ),
        ("leak", r"memory leak detected", "SGLang's own checker found that a pool's parts do not add up"),
        ("out-of-pool", r"Decode out of memory", "an allocation failed although retraction should have made room"),
    )
)


def crash_lines(log: Path) -> tuple[LogLine, ...]:
    """The lines with a signature, the first MAX_LINES of them. Raises OSError."""
    found: list[LogLine] = []
    with log.open(encoding="utf-8", errors="replace") as file:
        for number, text in enumerate(file, start=1):
            match = next((row for row in _SIGNATURES if row[1].search(text)), None)
            if match is not None:
                found.append(LogLine(log.name, number, match[0], text.strip()[:MAX_LINE_CHARS], match[2]))
            if len(found) == MAX_LINES:
                break
    return tuple(found)
