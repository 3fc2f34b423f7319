"""What one pass over a log leaves, for rules, documents and views. Nothing here grows with the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Pool = Literal["full", "swa"]
Device = Literal["cpu", "cuda", ""]
Process = Literal["scheduler", "other", "thread", "outside"]
"""What a process id in a log is of: a scheduler, any process of SGLang's, a thread (a process' first one has its id),
or what a collector of logs took it for."""


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
class Eager:
    """Decode lines that say that their steps ran without a CUDA graph, and those with one.

    Attributes:
        lines: how many ran without.
        graph_lines: how many ran with one.
        first: where the first one without stands.
        smallest: the fewest requests that ran without.
        largest_in_graph: the most requests that ran with one.
        speed: tokens per second and request without, the mean over lines.
        speed_in_graph: the same with one; 0 if none ran with one.
    """

    lines: int
    graph_lines: int
    first: Place
    smallest: int
    largest_in_graph: int
    speed: float
    speed_in_graph: float


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


@dataclass(frozen=True, slots=True)
class Standing:
    """Decode lines in a row in which equally many requests, and some, waited for KV from a prefill server.

    Attributes:
        requests: that waited for it.
        lines: how many decode lines.
        first: the first of them.
        last: the last of them.
        running: the most that ran in one of them.
    """

    requests: int
    lines: int
    first: Place
    last: Place
    running: int


@dataclass(frozen=True)
class RankFacts:
    """What a log says of one scheduler.

    Attributes:
        rank: which scheduler; "" if the server has only one.
        prefill_lines: how many prefill lines it wrote.
        decode_lines: how many decode lines it wrote.
        new_requests: how many requests it took in.
        new_tokens: how many prompt tokens it computed.
        cached_tokens: how many prompt tokens came from the prefix cache.
        peaks: where each pool was fullest.
        usage_lines: how many lines gave a usage of a pool.
        pressed: in how many batch lines that pool alone was full.
        pressed_queued: in how many of those lines requests were waiting.
        accept_length: the mean over verify steps; None without speculative decoding.
        accept_drop: where the accept length fell; None if it did not.
        generated_per_s: the mean of decode lines.
        throughput_drop: where the tokens per second fell; None if they did not.
        cached_share_drop: where the share of cached tokens fell; None if it did not.
        retractions: how often requests were retracted, and where.
        series: columns of equal length, downsampled; see `series`.
        eager: decode lines that ran without a CUDA graph; None if there are none.
        moving_lines: in how many decode lines more requests waited for KV from a prefill server than ran.
        moving_most: the most that waited for it.
        standing: the last decode lines in a row in which as many waited for it; None if they are fewer than two.
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
    eager: Eager | None = None
    moving_lines: int = 0
    moving_most: int = 0
    standing: Standing | None = None

    @property
    def cached_share(self) -> float | None:
        """The share of all prompt tokens that came from the prefix cache; None if there were no prompts."""
        total = self.new_tokens + self.cached_tokens
        return self.cached_tokens / total if total else None


@dataclass(frozen=True, slots=True)
class Death:
    """Something that ends a server: an exception that a worker died of, or a message that only such an end prints.

    Attributes:
        place: where in the log it stands.
        rank: which scheduler it ended; "" if the server has only one.
        type_name: the exception's type; "" for a message.
        message: the exception's text, or the message.
        frames: the last frames of the traceback as 'file.py:12 function', the innermost last.
        usage: the last pool usage that this rank reported before it, or any rank if this one reported none.
        path: the innermost frame's file below SGLang's srt, as "mem_cache/common.py"; "" if it is another's.
        package: the installed package whose file the innermost frame is in, as "flashinfer"; "" if it is none's.
        caller: the innermost file of SGLang's among the frames, below its srt; "" if there is none.
        chain: the line where the first of the exceptions begins that were raised while each other were handled.
        statement: the innermost frame's line of source, as the traceback quotes it; "" if it does not.
        host: the file of another program that called the inner parts of SGLang itself; "" if none did.
        of_thread: whether Python says that it ended a thread.
    """

    place: Place
    rank: str
    type_name: str
    message: str
    frames: tuple[str, ...] = ()
    usage: Usage | None = None
    path: str = ""
    package: str = ""
    caller: str = ""
    chain: int = 0
    statement: str = ""
    host: str = ""
    of_thread: bool = False

    @property
    def frame(self) -> str:
        """The innermost frame; "" if none is known."""
        # One whose file was left out is a function alone.
        return self.frames[-1].strip() if self.frames else ""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A line that says that something failed, outside tracebacks; the first of its kind, see alarms.py.

    Attributes:
        kind: what it says happened: "killed", "signalled", "nccl", "nan", and others of alarms.py.
        place: where in the log the first one stands.
        rank: which scheduler wrote it; "" if the server has only one, or something else wrote it.
        text: the line.
        count: how many lines of the kind there are.
        last: where the last one stands; None if there is one only.
        ranks: the schedulers that wrote further ones.
        more: the first ones that followed, or the exception that stands before the line.
    """

    kind: str
    place: Place
    rank: str
    text: str
    count: int = 1
    last: Place | None = None
    ranks: tuple[str, ...] = ()
    more: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Remark:
    """A line that explains others, see remarks.py."""

    place: Place
    rank: str
    text: str


@dataclass(frozen=True, slots=True)
class Unserved:
    """Requests that came in behind the last batch line and the last answer, see received.py.

    Attributes:
        count: how many.
        first: where the first of them came in.
        last: where the last of them did.
        text: the first one's line.
        answered: whether a request was answered before.
    """

    count: int
    first: Place
    last: Place
    text: str
    answered: bool


@dataclass(frozen=True, slots=True)
class Stack:
    """Where the main thread of a scheduler stood when py-spy looked: "file:line function", the innermost first."""

    place: Place
    rank: str
    frames: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LeakLine:
    """One pool equation of SGLang's checker.

    Attributes:
        place: where in the log it stands.
        pool: "full" or "swa", as the checker names it.
        text: the equation.
        total: the tokens of the pool.
        missing: total less all that is accounted for.
        negative: whether a side of it is below 0: something was released more often than it was taken.
    """

    place: Place
    pool: str
    text: str
    total: int
    missing: int
    negative: bool = False


@dataclass(frozen=True, slots=True)
class GuardLine:
    """What a probe of ours logged.

    Attributes:
        place: where.
        rule: the probe.
        action: trapped, contained or logged.
        summary: what it found.
        dump: the directory of its dump as the server named it; "" if there is none.
        problem: why there is no dump, as far as the line says so.
    """

    place: Place
    rule: str
    action: str
    summary: str
    dump: str
    problem: str = ""


@dataclass(frozen=True)
class LogFacts:
    """What a whole log says. A `*_count` is how many there were, where the tuple beside it keeps the first ones only.

    Attributes:
        name: the log's name, as findings cite it.
        size_bytes: how large the log is.
        lines: how many lines it has.
        understood: how many lines of each kind were understood.
        device: what its batches ran on; "" if no batch line says so.
        torn_last_line: whether the log ends in the middle of a line.
        long_lines: how many lines were cut for their length.
        problem: why reading ended early; None if it did not.
        first_time: the first stamp in the log; "" if there is none.
        last_time: the last stamp of a line that was understood; "" if there is none.
        end_time: the last stamp in the log, of whatever line; "" if there is none.
        starts: how many servers started in it.
        settings: those of the last start that rules ask for, as ServerArgs printed them.
        arguments: all that ServerArgs printed at the last start, without secrets.
        pool_tokens: the tokens of the pools "full" and "swa", where the log says so.
        faults: the ids of faults that were injected.
        ranks: one record for each scheduler.
        dropped_rank_lines: how many lines came from schedulers beyond MAX_RANKS.
        deaths: what ended servers.
        death_count: how many such ends there were.
        leaks: the leaks that the server itself reported.
        leak_count: how many such reports there were.
        guards: what this project's probes reported.
        guard_count: how many such reports there were.
        release: SGLang's, where a line names it; "" if none does.
        alarms: lines that say that something failed and belong to nothing above.
        remarks: the last line of each kind that explains others; see remarks.py.
        stacks: where schedulers stood when py-spy looked.
        errors: the last exceptions that no process is known to have died of.
        named_files: guard manifests and crash snapshots that the server names, by their file's name.
        pids: process ids of the server by what names them; those of "outside" are the host's, where a container has
            numbers of its own.
        rank_pids: process ids of schedulers by their ranks, where the log says both.
        unserved: requests that came in and that no batch and no answer follows; None if there are none.
        program_lines: how many lines that were not understood look like a Python program's: a level, a stamp, a frame.
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
    release: str = ""
    end_time: str = ""
    alarms: tuple[Alarm, ...] = ()
    named_files: tuple[str, ...] = ()
    pids: Mapping[Process, tuple[int, ...]] = field(default_factory=dict)
    rank_pids: Mapping[int, int] = field(default_factory=dict)
    program_lines: int = 0
    remarks: Mapping[str, Remark] = field(default_factory=dict)
    stacks: tuple[Stack, ...] = ()
    errors: tuple[Death, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    unserved: Unserved | None = None

    @property
    def failures(self) -> tuple[Death, ...]:
        """Return what processes died of, then what single lines say of it, each in the order of the log."""
        # The last line of a traceback whose frames are known says no more by itself.
        told = {f"{death.type_name}: {death.message}" for death in self.deaths if death.frames}
        lines = (Death(alarm.place, alarm.rank, "", alarm.text) for alarm in self.alarms if alarm.text not in told)
        return (*self.deaths, *lines)

    @property
    def understood_lines(self) -> int:
        return sum(self.understood.values())

    @property
    def served(self) -> bool:
        """Say whether any scheduler reports a batch."""
        return any(rank.prefill_lines + rank.decode_lines for rank in self.ranks)

    @property
    def schedulers(self) -> tuple[RankFacts, ...]:
        """The ranks that report batches. Retractions are printed by every rank of a group, batches by its first."""
        return tuple(rank for rank in self.ranks if rank.prefill_lines + rank.decode_lines) or self.ranks[:1]
