"""What one pass over a log leaves, for rules, documents and views. Nothing here grows with the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Pool = Literal["full", "swa"]
Device = Literal["cpu", "cuda", ""]


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the log, and what the server's clock said there, "" if the line does not."""

    line: int
    time: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Shares of the two pools in use, 0 to 1, as one batch line had them. None: not said, or no such pool."""

    place: Place
    full: float | None
    swa: float | None

    @property
    def binding(self) -> Pool:
        """The fuller pool."""
        return "swa" if (self.swa or 0) > (self.full or 0) else "full"


@dataclass(frozen=True, slots=True)
class Drop:
    """The lowest that a moving mean came to, against the mean of all before it.

    first, last: the lines of that window. recovered: where it was back at 90% of `before`, None if it never was.
    """

    before: float
    after: float
    first: Place
    last: Place
    recovered: Place | None

    @property
    def ratio(self) -> float:
        return self.after / self.before


@dataclass(frozen=True, slots=True)
class Burst:
    """The shortest stretch that held BURST_EVENTS retractions. seconds: None where the log has no times."""

    events: int
    seconds: float | None
    batch_lines: int
    first: Place
    last: Place


@dataclass(frozen=True)
class Retractions:
    """events: lines "KV cache pool is full". requests: that they name. binding: of the usage last seen before each.

    recomputed_*: tokens of prefill lines that ran while retracted requests waited, by their share of the requests.
    """

    events: int = 0
    requests: int = 0
    first: Place | None = None
    last: Place | None = None
    binding: Mapping[str, int] | None = None
    worst: Usage | None = None
    burst: Burst | None = None
    recomputed_requests: int = 0
    recomputed_tokens: int = 0
    recomputed_cached_tokens: int = 0


@dataclass(frozen=True)
class RankFacts:
    """One scheduler. pressed: batch lines in which that pool alone was full. peaks: where each pool was fullest.

    accept_length: mean over verify steps, None without speculative decoding. generated_per_s: mean of decode lines.
    series: columns of equal length, downsampled; see `series`.
    """

    rank: str
    prefill_lines: int
    decode_lines: int
    new_requests: int
    new_tokens: int
    cached_tokens: int
    peaks: Mapping[Pool, Usage]
    usage_lines: int
    pressed: Mapping[Pool, int]
    pressed_queued: Mapping[Pool, int]
    accept_length: float | None
    accept_drop: Drop | None
    generated_per_s: float | None
    throughput_drop: Drop | None
    cached_share_drop: Drop | None
    retractions: Retractions
    series: Mapping[str, list]

    @property
    def cached_share(self) -> float | None:
        """Of all prompt tokens, those that the prefix cache had."""
        total = self.new_tokens + self.cached_tokens
        return self.cached_tokens / total if total else None


@dataclass(frozen=True, slots=True)
class Death:
    """Something that ends a server: an exception that a worker died of, or a message that only such an end prints.

    type_name: "" for a message. frames: the last of the traceback, as 'file.py:12 function', innermost last. usage: the
    last that the same rank reported before it, of any rank if that one reported none.
    """

    place: Place
    rank: str
    type_name: str
    message: str
    frames: tuple[str, ...] = ()
    usage: Usage | None = None

    @property
    def frame(self) -> str:
        """The innermost, "" if none is known."""
        return self.frames[-1] if self.frames else ""


@dataclass(frozen=True, slots=True)
class LeakLine:
    """One pool equation of SGLang's checker. missing: total less all that is accounted for, in tokens."""

    place: Place
    pool: str
    text: str
    total: int
    missing: int


@dataclass(frozen=True, slots=True)
class GuardLine:
    """What a probe of ours logged. action: trapped, contained or logged. dump: its directory, "" if there is none."""

    place: Place
    rule: str
    action: str
    summary: str
    dump: str


@dataclass(frozen=True)
class LogFacts:
    """A whole log. understood: lines by kind. *_count: how many there were, where the tuple keeps the first ones only.

    device: what its batches ran on, "" if no batch line says so. settings: of the last start in the log, as ServerArgs
    printed them. pool_tokens: "full" and "swa", where said. dropped_rank_lines: of schedulers beyond MAX_RANKS.
    """

    name: str
    size_bytes: int
    lines: int
    understood: Mapping[str, int]
    device: Device
    torn_last_line: bool
    long_lines: int
    problem: str | None
    first_time: str
    last_time: str
    starts: int
    settings: Mapping[str, str]
    pool_tokens: Mapping[Pool, int]
    faults: tuple[str, ...]
    ranks: tuple[RankFacts, ...]
    dropped_rank_lines: int
    deaths: tuple[Death, ...]
    death_count: int
    leaks: tuple[LeakLine, ...]
    leak_count: int
    guards: tuple[GuardLine, ...]
    guard_count: int

    @property
    def understood_lines(self) -> int:
        return sum(self.understood.values())

    @property
    def schedulers(self) -> tuple[RankFacts, ...]:
        """The ranks that report batches. Retractions are printed by every rank of a group, batches by its first."""
        return tuple(rank for rank in self.ranks if rank.prefill_lines + rank.decode_lines) or self.ranks[:1]
