"""Time series of one scheduler, of bounded length however long the log is.

A point stands for `width` batch lines in a row. When there are too many points, neighbours are merged and the width
doubles, so the series covers the whole log evenly by lines; a point's time is that of its first line.
"""

from __future__ import annotations

from gemma4_triage.logs.batch_line import BatchLine

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


class _Point:
    __slots__ = (
        "accept_count",
        "accept_sum",
        "batch_lines",
        "cached",
        "full",
        "generated_count",
        "generated_sum",
        "line",
        "new",
        "queued",
        "retracted",
        "running",
        "swa",
        "time",
    )

    def __init__(self, line: int, time: str) -> None:
        self.line, self.time = line, time
        self.batch_lines = self.new = self.cached = self.retracted = 0
        self.full: float | None = None
        self.swa: float | None = None
        self.running: int | None = None
        self.queued: int | None = None
        self.accept_sum = self.generated_sum = 0.0
        self.accept_count = self.generated_count = 0

    def add(self, batch: BatchLine) -> None:
        self.batch_lines += 1
        self.full = _larger(self.full, batch.full_usage)
        self.swa = _larger(self.swa, batch.swa_usage)
        self.running = _larger(self.running, batch.running)
        self.queued = _larger(self.queued, batch.queued)
        self.new += batch.new_tokens
        self.cached += batch.cached_tokens
        if batch.accept_length is not None:
            self.accept_sum += batch.accept_length
            self.accept_count += 1
        if batch.generated_per_s is not None:
            self.generated_sum += batch.generated_per_s
            self.generated_count += 1

    def absorb(self, later: _Point) -> None:
        self.batch_lines += later.batch_lines
        self.full, self.swa = _larger(self.full, later.full), _larger(self.swa, later.swa)
        self.running, self.queued = _larger(self.running, later.running), _larger(self.queued, later.queued)
        self.new += later.new
        self.cached += later.cached
        self.retracted += later.retracted
        self.accept_sum += later.accept_sum
        self.accept_count += later.accept_count
        self.generated_sum += later.generated_sum
        self.generated_count += later.generated_count

    def row(self) -> tuple:
        """Return the values of this point in the order of COLUMNS."""
        accept = round(self.accept_sum / self.accept_count, 4) if self.accept_count else None
        generated = round(self.generated_sum / self.generated_count, 2) if self.generated_count else None
        return (
            *(self.line, self.time, self.batch_lines, self.full, self.swa, self.running, self.queued),
            *(self.new, self.cached, self.retracted, accept, generated),
        )


class Series:
    """At most `limit` points; limit is even."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._width = 1
        self._points: list[_Point] = []

    def add(self, batch: BatchLine, line: int, time: str) -> None:
        """One batch line."""
        if not self._points or self._points[-1].batch_lines >= self._width:
            if len(self._points) == self._limit:
                self._halve()
            self._points.append(_Point(line, time))
        self._points[-1].add(batch)

    def retracted(self, requests: int) -> None:
        """Since the last batch line."""
        if self._points:
            self._points[-1].retracted += requests

    def columns(self) -> dict[str, list]:
        """Return the columns by the names in COLUMNS, all of one length."""
        rows = [point.row() for point in self._points]
        return {name: [row[index] for row in rows] for index, name in enumerate(COLUMNS)}

    def _halve(self) -> None:
        for early, late in zip(self._points[::2], self._points[1::2], strict=True):
            early.absorb(late)
        self._points = self._points[::2]
        self._width *= 2


def _larger(one, other):
    if one is None:
        return other
    return one if other is None or one >= other else other
