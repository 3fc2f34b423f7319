"""Compares the drafts of two arms. A draft depends on the prompt and on the tokens committed before it.

Greedy outputs are the same in both arms, so a round that starts at the same position of the same prompt starts from
the same text: drafts that differ there differ because the assistant read something else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

Key = tuple[int, int]


@dataclass(frozen=True)
class DraftDifference:
    """compared: draft tokens of rounds that both arms began at the same prompt and position."""

    rounds: int
    compared: int
    differing: int

    @property
    def share(self) -> float:
        return self.differing / self.compared if self.compared else 0.0


def read_drafts(path: Path) -> dict[Key, tuple[int, ...]]:
    """(prompt, position) -> draft tokens. The first draft counts: a retracted request drafts again.

    A last line without its end is dropped, since a crash may cut it.

    Raises:
        OSError: the file cannot be read.
        ValueError: a whole line is not a draft record.
    """
    drafts: dict[Key, tuple[int, ...]] = {}
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.endswith("\n"):
                break
            prompt, position, tokens = json.loads(line)
            drafts.setdefault((int(prompt), int(position)), tuple(int(token) for token in tokens))
    return drafts


def compare_drafts(ours: dict[Key, tuple[int, ...]], theirs: dict[Key, tuple[int, ...]]) -> DraftDifference:
    """Compare position by position within the rounds that both have."""
    common = ours.keys() & theirs.keys()
    pairs = [pair for key in common for pair in zip(ours[key], theirs[key], strict=False)]
    return DraftDifference(len(common), len(pairs), _count(a != b for a, b in pairs))


def _count(values: Iterable[bool]) -> int:
    return sum(1 for value in values if value)
