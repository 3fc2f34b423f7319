"""Are an arm's answers those of the reference? Pure: tokens and log probabilities in, a record out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from gemma4_repro.step_bench.plan import MARGIN, MOST_RELATIVE

HOST_TOLERANCE = 0.001
"""Of fp32 on the host engine, whose toy keeps its trained weights."""


@dataclass(frozen=True)
class Told:
    """What an answer begins with.

    Attributes:
        tokens: chosen ones.
        logprobs: of some tokens of the vocabulary at each place; of the encoder, which chooses no tokens, values in one
            place.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[tuple[float, ...], ...]


def same_tokens(found: Told, wanted: Told) -> int:
    """Say how many tokens both answers begin with."""
    pairs = zip(found.tokens, wanted.tokens, strict=False)
    return next((place for place, (mine, other) in enumerate(pairs) if mine != other), len(wanted.tokens))


def comparable(
    found: Sequence[Told], wanted: Sequence[Told]
) -> tuple[list[tuple[float, ...]], list[tuple[float, ...]]]:
    """Return the log probabilities of both at all places whose tokens before them are the same, of every answer.

    Greedy choices between nearly equal tokens may fall differently in two right servers; what comes after is another
    text, and its log probabilities are others.
    """
    mine: list[tuple[float, ...]] = []
    others: list[tuple[float, ...]] = []
    for one, other in zip(found, wanted, strict=True):
        places = same_tokens(one, other) + 1
        mine += one.logprobs[:places]
        others += other.logprobs[:places]
    return mine, others


def difference(found: Sequence[Sequence[float]], wanted: Sequence[Sequence[float]]) -> float | None:
    """Root mean square difference over the standard deviation of `wanted`; None where they cannot be compared."""
    mine, other = numpy.array(found, dtype=float), numpy.array(wanted, dtype=float)
    if not mine.size or mine.shape != other.shape or not (numpy.isfinite(mine).all() and numpy.isfinite(other).all()):
        return None
    spread = other.std()
    return float(numpy.sqrt(numpy.mean((mine - other) ** 2)) / spread) if spread > 0 else None


def tolerance(moved: float | None) -> float | None:
    """moved: by how much the reference differs from itself when its norms move by a unit or two in the last place."""
    return None if moved is None else min(MARGIN * moved, MOST_RELATIVE)


def answer_record(model: str, shape: str, arm: str, found: float | None, limit: float | None) -> dict[str, Any]:
    right = found is not None and limit is not None and found <= limit
    return {"model": model, "shape": shape, "arm": arm, "difference": found, "tolerance": limit, "right": right}
