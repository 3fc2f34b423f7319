"""A moving mean against the mean of everything before it, in constant memory."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from gemma4_triage.logs.facts import Drop, Place

_RECOVERED = 0.9


class DropWatch:
    """Keeps the deepest drop of a weighted series to at most `threshold` of its mean so far.

    window: how many values make the moving mean; as many again have to come before them. worst: that drop.
    """

    def __init__(self, threshold: float, window: int) -> None:
        self._threshold, self._window = threshold, window
        self._sums: deque[float] = deque(maxlen=window)
        self._weights: deque[float] = deque(maxlen=window)
        self._places: deque[tuple[int, str]] = deque(maxlen=window)
        self._past_sum = self._past_weight = 0.0
        self._past_count = 0
        self.worst: Drop | None = None

    def add(self, value: float, weight: float, line: int, time: str) -> None:
        """weight: how many observations the value is a mean of; more than 0."""
        sums, weights = self._sums, self._weights
        if len(sums) == self._window:
            self._past_sum += sums[0]
            self._past_weight += weights[0]
            self._past_count += 1
        sums.append(value * weight)
        weights.append(weight)
        self._places.append((line, time))
        if self._past_count >= self._window:
            self._compare()

    def _compare(self) -> None:
        # Summed anew each time: a running difference would drift over billions of values.
        after = sum(self._sums) / sum(self._weights)
        before = self._past_sum / self._past_weight
        worst = self.worst
        if before > 0 and after <= self._threshold * before and (worst is None or after < worst.ratio * before):
            self.worst = Drop(before, after, Place(*self._places[0]), Place(*self._places[-1]), None)
        elif worst is not None and worst.recovered is None and after >= _RECOVERED * worst.before:
            self.worst = replace(worst, recovered=Place(*self._places[-1]))

    @property
    def mean(self) -> float | None:
        """Return the mean of all values by their weights."""
        weight = self._past_weight + sum(self._weights)
        return (self._past_sum + sum(self._sums)) / weight if weight else None
