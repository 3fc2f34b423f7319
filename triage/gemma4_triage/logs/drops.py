"""A moving mean against the mean of everything before it, in constant memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gemma4_triage.logs.batch_table import time_text
from gemma4_triage.logs.facts import Drop, Place

_RECOVERED = 0.9


class DropWatch:
    """Keeps the deepest drop of a weighted series to at most `threshold` of its mean so far.

    window: how many values make the moving mean; as many again have to come before them. worst: that drop.
    """

    def __init__(self, threshold: float, window: int) -> None:
        self._threshold, self._window = threshold, window
        # The last values, at most `window` of them; those before are in the sums of the past.
        self._recent = np.zeros((4, 0))
        self._past_sum = self._past_weight = 0.0
        self._past_count = 0
        self.worst: Drop | None = None

    def add(self, values: np.ndarray, weights: np.ndarray, lines: np.ndarray, times: np.ndarray) -> None:
        """Add values in the order of the log.

        Args:
            values: float64 [n].
            weights: float64 [n], how many observations each value is a mean of; more than 0.
            lines: int64 [n], where each stands in the log.
            times: int64 [n], when, see `batch_table.time_text`.
        """
        if not len(values):
            return
        series = np.concatenate((self._recent, np.stack((values * weights, weights, lines, times))), axis=1)
        leaving = max(0, series.shape[1] - self._window)
        # One after the other, so that what is said does not depend on where a block ends.
        sums, past_weights = (
            np.cumsum(np.concatenate(([past], row[:leaving])))[1:]
            for past, row in zip((self._past_sum, self._past_weight), series[:2], strict=True)
        )
        early = max(0, self._window - 1 - self._past_count)
        if leaving > early:
            moving = np.lib.stride_tricks.sliding_window_view(series[:2, early + 1 :], self._window, axis=1)
            inside = moving.sum(axis=2)
            self._compare(inside[0] / inside[1], sums[early:] / past_weights[early:], series[2:, early + 1 :])
        if leaving:
            self._past_sum, self._past_weight = float(sums[-1]), float(past_weights[-1])
            self._past_count += leaving
        self._recent = series[:, leaving:]

    def _compare(self, after: np.ndarray, before: np.ndarray, places: np.ndarray) -> None:
        """Hold each window against what came before it; `places` are those of all values, the first window's first."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where((before > 0) & (after <= self._threshold * before), after / before, np.inf)
        at = int(ratio.argmin())
        since = 0
        if ratio[at] < (np.inf if self.worst is None else self.worst.ratio):
            first, last = _place(places[:, at]), _place(places[:, at + self._window - 1])
            self.worst = Drop(float(before[at]), float(after[at]), first, last, None)
            since = at + 1
        if self.worst is not None and self.worst.recovered is None:
            back = np.flatnonzero(after[since:] >= _RECOVERED * self.worst.before)
            if len(back):
                place = _place(places[:, since + int(back[0]) + self._window - 1])
                self.worst = replace(self.worst, recovered=place)

    @property
    def mean(self) -> float | None:
        """Return the mean of all values by their weights."""
        total, weight = (float(row.sum()) for row in self._recent[:2])
        weight += self._past_weight
        return (self._past_sum + total) / weight if weight else None


def _place(place: np.ndarray) -> Place:
    return Place(int(place[0]), time_text(int(place[1])))
