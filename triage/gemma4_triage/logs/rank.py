"""What is kept of one scheduler while its log is read."""

from __future__ import annotations

from collections import deque

import numpy as np

from gemma4_triage.logs.batch_table import VALUES, Rows, concatenated, time_text
from gemma4_triage.logs.drops import DropWatch
from gemma4_triage.logs.facts import Burst, Eager, Place, Pool, RankFacts, Retractions, Standing, Usage
from gemma4_triage.logs.series import Series
from gemma4_triage.logs.stamp import Stamp

BURST_EVENTS = 5
PRESSED_AT = 0.9  # a pool this full, while the other is APART emptier, is the one that binds
APART = 0.2
ACCEPT_DROP, THROUGHPUT_DROP, CACHED_SHARE_DROP = 0.75, 0.4, 0.4
WINDOW = 8
_TOGETHER = 1 << 14  # rows
_RUNNING, _QUEUED, _FULL, _SWA, _SEQS, _NEW, _CACHED, _ACCEPT, _RATE, _GRAPH, _MOVING = range(len(VALUES))
MANY_MOVING = 8  # requests whose KV is on its way
BUSY_SHARE = 0.5  # of the largest batch so far; smaller ones say nothing about throughput


class RankReading:
    """Feed it rows in order; `facts` may be asked for at any time."""

    def __init__(self, rank: str, points: int) -> None:
        self.rank = rank
        self.usage: Usage | None = None
        self._waiting: list[Rows] = []
        self._waiting_count = 0
        self._retracted_after: dict[int, int] = {}
        self._highest: dict[Pool, float] = {"full": -1.0, "swa": -1.0}
        self._series = Series(points)
        self._prefill = self._decode = self._usage_lines = 0
        self._new_requests = self._new_tokens = self._cached_tokens = 0
        self._peaks: dict[Pool, Usage] = {}
        self._pressed: dict[Pool, int] = {"full": 0, "swa": 0}
        self._pressed_queued: dict[Pool, int] = {"full": 0, "swa": 0}
        self._accept = DropWatch(ACCEPT_DROP, WINDOW)
        self._pure_decode = DropWatch(THROUGHPUT_DROP, WINDOW)
        self._cached_share = DropWatch(CACHED_SHARE_DROP, WINDOW)
        self._generated_sum, self._generated_count = 0.0, 0
        self._after_decode, self._largest_batch = False, 0.0
        self._graphs = GraphReading()
        self._moving_lines = self._moving_most = 0
        self._standing: Standing | None = None
        self._retraction = RetractionReading()

    def add(self, rows: Rows) -> None:
        """Add prefill and decode lines. The last usage is known at once; all else is worked out for many together."""
        prefills = int(np.count_nonzero(rows.prefill))
        self._prefill += prefills
        self._decode += len(rows.lines) - prefills
        self._note_usage(rows)
        if prefills and self._retraction.waiting:
            self._retraction.prefills(rows.values[rows.prefill])
        self._waiting.append(rows)
        self._waiting_count += len(rows.lines)
        if self._waiting_count >= _TOGETHER:
            self._work_out()

    def retracted(self, requests: int, line: int, stamp: Stamp) -> None:
        """Add a line "KV cache pool is full. Retract requests."."""
        last = self._waiting_count - 1
        if last < 0:
            self._series.retracted(requests)
        else:
            self._retracted_after[last] = self._retracted_after.get(last, 0) + requests
        batch_lines = self._prefill + self._decode
        self._retraction.event(requests, Place(line, stamp.text), stamp.time_s, batch_lines, self.usage)

    def _note_usage(self, rows: Rows) -> None:
        at = len(rows.lines) - 1
        full, swa = rows.values[at, _FULL], rows.values[at, _SWA]
        if full != full and swa != swa:
            said = np.flatnonzero(~np.isnan(rows.values[:, [_FULL, _SWA]]).all(axis=1))
            if not len(said):
                return
            at = said[-1]
        self.usage = _usage(rows, at)

    def _work_out(self) -> None:
        """Go through the lines that wait."""
        if not self._waiting:
            return
        rows = concatenated(self._waiting)
        retracted = np.zeros(len(rows.lines))
        for at, requests in self._retracted_after.items():
            retracted[at] = requests
        self._waiting, self._waiting_count, self._retracted_after = [], 0, {}
        self._series.add(rows, retracted)
        self._use(rows)
        self._on_decode(rows)
        if rows.prefill.any():
            self._on_prefill(rows.part(rows.prefill))

    def _use(self, rows: Rows) -> None:
        full, swa = rows.values[:, _FULL], rows.values[:, _SWA]
        self._usage_lines += int(np.count_nonzero(~(np.isnan(full) & np.isnan(swa))))
        of_pools: tuple[tuple[Pool, np.ndarray], ...] = (("full", full), ("swa", swa))
        for pool, usage in of_pools:
            at = int(np.where(np.isnan(usage), -1.0, usage).argmax())
            if usage[at] > self._highest[pool]:
                self._highest[pool], self._peaks[pool] = float(usage[at]), _usage(rows, at)
        # Comparisons with NaN are false: a line that gives one pool only counts for none.
        pressed = (np.maximum(full, swa) >= PRESSED_AT) & (np.abs(full - swa) >= APART)
        queued = rows.values[:, _QUEUED] > 0
        binding: tuple[tuple[Pool, np.ndarray], ...] = (
            ("swa", pressed & (swa > full)),
            ("full", pressed & (swa <= full)),
        )
        for pool, binds in binding:
            self._pressed[pool] += int(np.count_nonzero(binds))
            self._pressed_queued[pool] += int(np.count_nonzero(binds & queued))

    def _on_prefill(self, rows: Rows) -> None:
        new, cached = rows.values[:, _NEW], rows.values[:, _CACHED]
        self._new_requests += int(rows.values[:, _SEQS].sum())
        self._new_tokens += int(new.sum())
        self._cached_tokens += int(cached.sum())
        tokens = new + cached
        some = tokens > 0
        self._cached_share.add(cached[some] / tokens[some], tokens[some], rows.lines[some], rows.times[some])

    def _on_decode(self, rows: Rows) -> None:
        running, accept, rate = (rows.values[:, column] for column in (_RUNNING, _ACCEPT, _RATE))
        decode = ~rows.prefill
        some = decode & ~np.isnan(accept) & (running > 0)
        self._accept.add(accept[some], running[some], rows.lines[some], rows.times[some])
        largest = np.maximum.accumulate(np.where(decode, running, 0.0).clip(self._largest_batch))
        self._largest_batch = float(largest[-1])
        moving = np.where(decode, np.nan_to_num(rows.values[:, _MOVING]), 0)
        self._moving_lines += int(np.count_nonzero((moving >= MANY_MOVING) & (moving >= running)))
        self._moving_most = max(self._moving_most, int(moving.max()))
        if decode.any():
            self._stand(moving[decode], running[decode], rows.lines[decode], rows.times[decode])
        # A prefill in between takes time that SGLang counts as decoding.
        after_decode = np.concatenate(([self._after_decode], decode[:-1]))
        self._after_decode = bool(decode[-1])
        rated = decode & ~np.isnan(rate)
        self._graphs.add(rows.part(rated & (running > 0)))
        self._generated_sum = float(np.cumsum(np.concatenate(([self._generated_sum], rate[rated])))[-1])
        self._generated_count += int(np.count_nonzero(rated))
        pure = rated & after_decode & (running >= BUSY_SHARE * largest)
        weights = np.ones(int(np.count_nonzero(pure)))
        self._pure_decode.add(rate[pure], weights, rows.lines[pure], rows.times[pure])

    def _stand(self, moving: np.ndarray, running: np.ndarray, lines: np.ndarray, times: np.ndarray) -> None:
        """Take note of the decode lines at the end in which as many as in the last wait for their KV."""
        many = int(moving[-1])
        if not many:
            self._standing = None
            return
        others = np.flatnonzero(moving != many)
        begin = int(others[-1]) + 1 if len(others) else 0
        first, last = (Place(int(lines[at]), time_text(int(times[at]))) for at in (begin, -1))
        count, most = len(moving) - begin, int(running[begin:].max())
        before = self._standing
        if not begin and before is not None and before.requests == many:
            first, count, most = before.first, before.lines + count, max(before.running, most)
        self._standing = Standing(many, count, first, last, most)

    def facts(self) -> RankFacts:
        """Return what has been learnt of this scheduler up to the last line that was read."""
        self._work_out()
        return RankFacts(
            rank=self.rank,
            prefill_lines=self._prefill,
            decode_lines=self._decode,
            new_requests=self._new_requests,
            new_tokens=self._new_tokens,
            cached_tokens=self._cached_tokens,
            peaks=dict(self._peaks),
            usage_lines=self._usage_lines,
            pressed=dict(self._pressed),
            pressed_queued=dict(self._pressed_queued),
            accept_length=self._accept.mean,
            accept_drop=self._accept.worst,
            generated_per_s=self._generated_sum / self._generated_count if self._generated_count else None,
            throughput_drop=self._pure_decode.worst,
            cached_share_drop=self._cached_share.worst,
            eager=self._graphs.facts(),
            moving_lines=self._moving_lines,
            moving_most=self._moving_most,
            standing=self._standing if self._standing is not None and self._standing.lines > 1 else None,
            retractions=self._retraction.facts(),
            series=self._series.columns(),
        )


class GraphReading:
    """How decode lines fare within and without CUDA graphs."""

    def __init__(self) -> None:
        self._count = {1: 0, 0: 0}
        self._speed = {1: 0.0, 0: 0.0}
        self._largest = self._smallest = 0
        self._first: Place | None = None

    def add(self, rows: Rows) -> None:
        """Add decode lines that give a throughput and run requests."""
        running, rate, graph = (rows.values[:, column] for column in (_RUNNING, _RATE, _GRAPH))
        for kind in (1, 0):
            some = graph == kind
            if not some.any():
                continue
            self._count[kind] += int(np.count_nonzero(some))
            self._speed[kind] += float((rate[some] / running[some]).sum())
            if kind:
                self._largest = max(self._largest, int(running[some].max()))
            else:
                least = int(running[some].min())
                self._smallest = least if self._first is None else min(self._smallest, least)
                at = int(some.argmax())
                self._first = self._first or Place(int(rows.lines[at]), time_text(int(rows.times[at])))

    def facts(self) -> Eager | None:
        """Return what there is of lines without a graph; None if there are none."""
        if self._first is None:
            return None
        return Eager(
            lines=self._count[0],
            graph_lines=self._count[1],
            first=self._first,
            smallest=self._smallest,
            largest_in_graph=self._largest,
            speed=self._speed[0] / self._count[0],
            speed_in_graph=self._speed[1] / self._count[1] if self._count[1] else 0.0,
        )


class RetractionReading:
    """Retractions, and the prefills that they cost again."""

    def __init__(self) -> None:
        self._events = self._requests = 0
        self.waiting = 0
        self._recomputed = self._tokens = self._cached = 0
        self._first: Place | None = None
        self._last: Place | None = None
        self._binding = {"full": 0, "swa": 0, "unknown": 0}
        self._worst: Usage | None = None
        self._recent: deque[tuple[float | None, int, Place]] = deque(maxlen=BURST_EVENTS)
        self._burst: Burst | None = None

    def event(self, requests: int, place: Place, time_s: float | None, batch_lines: int, usage: Usage | None) -> None:
        self._events += 1
        self._requests += requests
        self.waiting += requests
        self._first, self._last = self._first or place, place
        self._binding["unknown" if usage is None else usage.binding] += 1
        if usage is not None and (self._worst is None or _fullest(usage) > _fullest(self._worst)):
            self._worst = usage
        self._recent.append((time_s, batch_lines, place))
        if len(self._recent) == BURST_EVENTS:
            self._consider(self._recent[0], self._recent[-1])

    def prefills(self, values: np.ndarray) -> None:
        """Take note of prefills; retracted requests wait for one of their own, but which it is about, no line says.

        Args:
            values: float64 [n, len(VALUES)].
        """
        for requests, new, cached in values[:, [_SEQS, _NEW, _CACHED]].astype(np.int64).tolist():
            again = min(self.waiting, requests)
            if again:
                self.waiting -= again
                self._recomputed += again
                self._tokens += new * again // requests
                self._cached += cached * again // requests
            if not self.waiting:
                return

    def _consider(self, first: tuple[float | None, int, Place], last: tuple[float | None, int, Place]) -> None:
        known = first[0] is not None and last[0] is not None
        seconds = max(0.0, last[0] - first[0]) if known else None  # type: ignore[operator]
        burst = Burst(BURST_EVENTS, seconds, last[1] - first[1], first[2], last[2])
        if self._burst is None or _length(burst) < _length(self._burst):
            self._burst = burst

    def facts(self) -> Retractions:
        return Retractions(
            events=self._events,
            requests=self._requests,
            first=self._first,
            last=self._last,
            binding=dict(self._binding),
            worst=self._worst,
            burst=self._burst,
            recomputed_requests=self._recomputed,
            recomputed_tokens=self._tokens,
            recomputed_cached_tokens=self._cached,
        )


def _usage(rows: Rows, at: int) -> Usage:
    full, swa = (None if value != value else value for value in rows.values[at, [_FULL, _SWA]].tolist())
    return Usage(Place(int(rows.lines[at]), time_text(int(rows.times[at]))), full, swa)


def _fullest(usage: Usage) -> float:
    return max(usage.full or 0, usage.swa or 0)


def _length(burst: Burst) -> tuple[float, int]:
    return (float("inf") if burst.seconds is None else burst.seconds, burst.batch_lines)
