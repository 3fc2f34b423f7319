"""Time series of one scheduler, of bounded length however long the log is.

A point stands for `width` batch lines in a row. When there are too many points, neighbours are merged and the width
doubles, so the series covers the whole log evenly by lines; a point's time is that of its first line.
"""

from __future__ import annotations

import numpy as np

from gemma4_triage.logs.batch_table import VALUES, Rows, time_text

COLUMNS = (
    "line",
    "time",
    "batch_lines",
    "full_usage_max",
    "swa_usage_max",
    "running_max",
    "queued_max",
    "new_tokens",
    "cached_tokens",
    "retracted_requests",
    "accept_length",
    "generated_per_s",
)

_LARGEST = [VALUES.index(name) for name in ("full_usage", "swa_usage", "running", "queued")]
_TOKENS = [VALUES.index(name) for name in ("new_tokens", "cached_tokens")]
_MEANS = [VALUES.index(name) for name in ("accept_length", "generated_per_s")]
# Columns of the sums of a point.
_BATCH_LINES, _NEW, _CACHED, _RETRACTED, _ACCEPT, _RATE, _ACCEPT_COUNT, _RATE_COUNT = range(8)


class Series:
    """At most `limit` points; limit is even."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._width = 1
        self._count = 0
        self._places = np.zeros((limit, 2), dtype=np.int64)
        self._largest = np.zeros((limit, len(_LARGEST)))
        self._sums = np.zeros((limit, _RATE_COUNT + 1))

    def add(self, rows: Rows, retracted: np.ndarray) -> None:
        """Add batch lines.

        Args:
            rows: of one scheduler.
            retracted: float64 [n], how many requests were retracted between each row and the next.
        """
        means = rows.values[:, _MEANS]
        sums = np.column_stack(
            (np.ones(len(retracted)), rows.values[:, _TOKENS], retracted, np.nan_to_num(means), ~np.isnan(means))
        )
        at = 0
        while at < len(sums):
            room = self._width - int(self._sums[self._count - 1, _BATCH_LINES]) if self._count else 0
            if not room and self._count == self._limit:
                self._halve()
                continue
            end = at + room + (self._limit - self._count) * self._width
            self._fill(rows.part(slice(at, end)), sums[at:end], room)
            at = end

    def _fill(self, rows: Rows, sums: np.ndarray, room: int) -> None:
        """Add rows for which there is place: the first `room` of them to the last point."""
        begins = np.arange(room, len(sums), self._width)
        edges = np.concatenate(([0], begins)) if room else begins
        largest = np.fmax.reduceat(rows.values[:, _LARGEST], edges, axis=0)
        sums = np.add.reduceat(sums, edges, axis=0)
        if room:
            last = self._count - 1
            self._largest[last] = np.fmax(self._largest[last], largest[0])
            self._sums[last] += sums[0]
            largest, sums = largest[1:], sums[1:]
        new = slice(self._count, self._count + len(begins))
        self._places[new] = np.column_stack((rows.lines[begins], rows.times[begins]))
        self._largest[new], self._sums[new] = largest, sums
        self._count += len(begins)

    def retracted(self, requests: int) -> None:
        """Add requests that were retracted since the last batch line."""
        if self._count:
            self._sums[self._count - 1, _RETRACTED] += requests

    def columns(self) -> dict[str, list]:
        """Return the columns by the names in COLUMNS, all of one length."""
        places, sums = self._places[: self._count].tolist(), self._sums[: self._count].tolist()
        largest = self._largest[: self._count].astype(object)
        largest[np.isnan(self._largest[: self._count])] = None
        largest = largest.tolist()
        columns = {
            "line": [line for line, _ in places],
            "time": [time_text(time) for _, time in places],
            "batch_lines": [int(row[_BATCH_LINES]) for row in sums],
            "full_usage_max": [row[0] for row in largest],
            "swa_usage_max": [row[1] for row in largest],
            "running_max": [None if row[2] is None else int(row[2]) for row in largest],
            "queued_max": [None if row[3] is None else int(row[3]) for row in largest],
            "new_tokens": [int(row[_NEW]) for row in sums],
            "cached_tokens": [int(row[_CACHED]) for row in sums],
            "retracted_requests": [int(row[_RETRACTED]) for row in sums],
            "accept_length": [_mean(row[_ACCEPT], row[_ACCEPT_COUNT], 4) for row in sums],
            "generated_per_s": [_mean(row[_RATE], row[_RATE_COUNT], 2) for row in sums],
        }
        return {name: columns[name] for name in COLUMNS}

    def _halve(self) -> None:
        self._count //= 2
        self._places[: self._count] = self._places[::2]
        self._largest[: self._count] = np.fmax(self._largest[::2], self._largest[1::2])
        self._sums[: self._count] = self._sums[::2] + self._sums[1::2]
        self._width *= 2


def _mean(total: float, count: float, digits: int) -> float | None:
    return round(total / count, digits) if count else None
