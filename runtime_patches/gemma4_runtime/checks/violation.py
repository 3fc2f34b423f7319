"""What a check returns when it finds something. Plain values: no tensors, nothing of SGLang's."""

from __future__ import annotations

from dataclasses import dataclass

# Enough to see the pattern in a terminal; the count says how many there were, and the dump holds the whole tensor.
MAX_LISTED = 64


@dataclass(frozen=True)
class BadIndex:
    """`value` at [row, column] of the checked tensor had to satisfy lower <= value < upper."""

    row: int
    column: int
    value: int
    lower: int
    upper: int


@dataclass(frozen=True)
class Violation:
    """`verdict` is one of gemma4_dumps' VERDICTS; `listed` the first bad indices; `count` how many there were."""

    verdict: str
    listed: tuple[BadIndex, ...]
    count: int

    @property
    def first(self) -> BadIndex:
        return self.listed[0]
