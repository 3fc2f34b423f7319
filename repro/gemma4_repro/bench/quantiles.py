"""Medians, quantiles, and ratios of rounds with a bootstrap interval. Pure Python: a plot needs no more."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Ratio:
    """Median of per-round ratios; low and high: its bootstrap interval, both None for fewer than three rounds."""

    median: float
    low: float | None
    high: float | None
    rounds: int


def quantile(values: Sequence[float], share: float) -> float:
    """Linear between the two nearest of the sorted values. Raises ValueError if there are none."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def spread(values: Sequence[float]) -> dict[str, float | int]:
    """median, q10, q90 and n."""
    return {
        "median": round(statistics.median(values), 5),
        "q10": round(quantile(values, 0.1), 5),
        "q90": round(quantile(values, 0.9), 5),
        "n": len(values),
    }


def ratio_by_round(arm: Mapping[int, float], reference: Mapping[int, float]) -> Ratio | None:
    """Return the ratio in the rounds that both have; None without one.

    Pairing by round takes out what drifts from round to round. The interval is the percentile bootstrap of the median
    over rounds, from a fixed seed.
    """
    ratios = [arm[number] / reference[number] for number in sorted(arm.keys() & reference.keys())]
    if not ratios:
        return None
    median = statistics.median(ratios)
    if len(ratios) < 3:
        return Ratio(median, None, None, len(ratios))
    draw = random.Random(0)
    medians = [statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(RESAMPLES)]
    tail = (1 - CONFIDENCE) / 2
    return Ratio(median, quantile(medians, tail), quantile(medians, 1 - tail), len(ratios))
