"""What is kept of one scheduler while its log is read."""

from __future__ import annotations

from collections import deque

from gemma4_triage.logs.batch_line import BatchLine
from gemma4_triage.logs.drops import DropWatch
from gemma4_triage.logs.facts import Burst, Place, Pool, RankFacts, Retractions, Usage
from gemma4_triage.logs.series import Series
from gemma4_triage.logs.stamp import Stamp

BURST_EVENTS = 5
PRESSED_AT = 0.9  # a pool this full, while the other is APART emptier, is the one that binds
APART = 0.2
ACCEPT_DROP, THROUGHPUT_DROP, CACHED_SHARE_DROP = 0.75, 0.4, 0.4
WINDOW = 8
BUSY_SHARE = 0.5  # of the largest batch so far; smaller ones say nothing about throughput


class RankReading:
    """Feed it lines in order; `facts` may be asked for at any time."""

    def __init__(self, rank: str, points: int) -> None:
        self.rank = rank
        self._usage: tuple[float | None, float | None, int, str] | None = None
        self._highest_full = self._highest_swa = -1.0
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
        self._prefilled_since_decode, self._largest_batch = True, 0
        self._retraction = RetractionReading()

    @property
    def usage(self) -> Usage | None:
        """The last that was reported."""
        return None if self._usage is None else _usage(*self._usage)

    def batch(self, batch: BatchLine, line: int, time: str) -> None:
        """A prefill or decode line."""
        self._series.add(batch, line, time)
        if batch.full_usage is not None or batch.swa_usage is not None:
            self._use(batch.full_usage, batch.swa_usage, batch.queued or 0, line, time)
        if batch.prefill:
            self._on_prefill(batch, line, time)
        else:
            self._on_decode(batch, line, time)

    def retracted(self, requests: int, line: int, stamp: Stamp) -> None:
        """A line "KV cache pool is full. Retract requests."."""
        self._series.retracted(requests)
        batch_lines = self._prefill + self._decode
        self._retraction.event(requests, Place(line, stamp.text), stamp.time_s, batch_lines, self.usage)

    def _use(self, full: float | None, swa: float | None, queued: int, line: int, time: str) -> None:
        self._usage = (full, swa, line, time)
        self._usage_lines += 1
        if full is not None and full > self._highest_full:
            self._highest_full, self._peaks["full"] = full, _usage(*self._usage)
        if swa is not None and swa > self._highest_swa:
            self._highest_swa, self._peaks["swa"] = swa, _usage(*self._usage)
        if full is None or swa is None or max(full, swa) < PRESSED_AT or abs(full - swa) < APART:
            return
        binding: Pool = "swa" if swa > full else "full"
        self._pressed[binding] += 1
        if queued:
            self._pressed_queued[binding] += 1

    def _on_prefill(self, batch: BatchLine, line: int, time: str) -> None:
        self._prefill += 1
        self._prefilled_since_decode = True
        self._new_requests += batch.new_requests
        self._new_tokens += batch.new_tokens
        self._cached_tokens += batch.cached_tokens
        self._retraction.prefill(batch)
        tokens = batch.new_tokens + batch.cached_tokens
        if tokens:
            self._cached_share.add(batch.cached_tokens / tokens, tokens, line, time)

    def _on_decode(self, batch: BatchLine, line: int, time: str) -> None:
        self._decode += 1
        self._largest_batch = max(self._largest_batch, batch.running)
        if batch.accept_length is not None and batch.running:
            self._accept.add(batch.accept_length, batch.running, line, time)
        if batch.generated_per_s is not None:
            self._generated_sum += batch.generated_per_s
            self._generated_count += 1
            # A prefill in between takes time that SGLang counts as decoding.
            if not self._prefilled_since_decode and batch.running >= BUSY_SHARE * self._largest_batch:
                self._pure_decode.add(batch.generated_per_s, 1, line, time)
        self._prefilled_since_decode = False

    def facts(self) -> RankFacts:
        """Return what has been learnt of this scheduler up to the last line that was read."""
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
            retractions=self._retraction.facts(),
            series=self._series.columns(),
        )


class RetractionReading:
    """Retractions, and the prefills that they cost again."""

    def __init__(self) -> None:
        self._events = self._requests = self._waiting = 0
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
        self._waiting += requests
        self._first, self._last = self._first or place, place
        self._binding["unknown" if usage is None else usage.binding] += 1
        if usage is not None and (self._worst is None or _fullest(usage) > _fullest(self._worst)):
            self._worst = usage
        self._recent.append((time_s, batch_lines, place))
        if len(self._recent) == BURST_EVENTS:
            self._consider(self._recent[0], self._recent[-1])

    def prefill(self, batch: BatchLine) -> None:
        """Retracted requests wait for a prefill of their own; which requests a line is about, it does not say."""
        if not self._waiting or not batch.new_requests:
            return
        again = min(self._waiting, batch.new_requests)
        self._waiting -= again
        self._recomputed += again
        self._tokens += batch.new_tokens * again // batch.new_requests
        self._cached += batch.cached_tokens * again // batch.new_requests

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


def _usage(full: float | None, swa: float | None, line: int, time: str) -> Usage:
    return Usage(Place(line, time), full, swa)


def _fullest(usage: Usage) -> float:
    return max(usage.full or 0, usage.swa or 0)


def _length(burst: Burst) -> tuple[float, int]:
    return (float("inf") if burst.seconds is None else burst.seconds, burst.batch_lines)
