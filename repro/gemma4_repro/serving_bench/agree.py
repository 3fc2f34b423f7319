"""Are an arm's answers those of the reference? Pure: lists of log probabilities in, a record out."""

from __future__ import annotations

from typing import Any

import numpy

from gemma4_repro.step_bench.plan import MARGIN, MOST_RELATIVE

HOST_TOLERANCE = 0.001
"""Of fp32 on the host engine, whose toy keeps its trained weights."""


def difference(found: list[list[float]], wanted: list[list[float]]) -> float | None:
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
