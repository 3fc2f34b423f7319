"""How far two outputs lie apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

TOLERANCES = {"float64": 1e-9, "float32": 2e-4, "float16": 4e-3, "bfloat16": 2e-2}
"""Absolute, for outputs up to 2; of larger ones in proportion. float64: the same pages in the same order give the same
bits, up to the order of sums. bfloat16: probabilities and results are rounded to 8 bits, 2**-9 of at most 2 each, and
the products add up."""


@dataclass(frozen=True)
class Difference:
    """How far outputs are from what was expected.

    Attributes:
        max_abs: the largest difference, None if an output is not finite.
        relative: to the largest expected, None if an output is not finite.
        cosine: the least of all heads.
        bad_rows: rows that differ by more than the tolerance.
        first_bad: row and head, None if none does.
    """

    max_abs: float | None
    relative: float | None
    cosine: float | None
    bad_rows: tuple[int, ...]
    first_bad: tuple[int, int] | None
    tolerance: float

    @property
    def fine(self) -> bool:
        return not self.bad_rows


def compare(found: np.ndarray, expected: np.ndarray, rows: np.ndarray, dtype: str) -> Difference:
    """found, expected: [queries, heads, head_dim]; rows: [queries], whose it is. dtype: what `found` was made in."""
    largest = float(np.abs(expected).max(initial=0.0))
    tolerance = TOLERANCES[dtype] * (max(largest / 2, 1.0) if np.isfinite(largest) else 1.0)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(found.astype(np.float64) - expected)
        per_head = apart.max(axis=2, initial=0.0)
        cosine = _cosines(found.astype(np.float64), expected)
    finite = bool(np.isfinite(per_head).all())
    # What is not finite differs from everything, itself included.
    bad = ~(per_head <= tolerance)
    first = np.argwhere(bad)
    max_abs = float(per_head.max(initial=0.0)) if finite else None
    return Difference(
        max_abs=max_abs,
        relative=None if max_abs is None else (max_abs / largest if largest else 0.0),
        cosine=float(cosine.min(initial=1.0)) if finite else None,
        bad_rows=tuple(np.unique(rows[bad.any(axis=1)]).tolist()),
        first_bad=(int(rows[first[0][0]]), int(first[0][1])) if len(first) else None,
        tolerance=tolerance,
    )


def _cosines(found: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """[queries, heads]; two zero vectors are alike."""
    product = (found * expected).sum(axis=2)
    lengths = np.linalg.norm(found, axis=2) * np.linalg.norm(expected, axis=2)
    return np.where(lengths > 0, product / np.where(lengths > 0, lengths, 1.0), (found == expected).all(axis=2))
