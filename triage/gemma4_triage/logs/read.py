"""One pass over a log, in memory that does not grow with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, compress, pairwise

import numpy as np

from gemma4_triage.known_issues import release
from gemma4_triage.logs import (
    events,
    host_pools,
    images,
    just_installed,
    notes_in_prose,
    other_platform,
    pasted,
    remarks,
    said_in_notes,
    scores_noted,
    split_sides,
    start_line,
    values_asked,
)
from gemma4_triage.logs.alarm_words import FATAL, OF_AN_ANSWER
from gemma4_triage.logs.alarms import IN_LOWER_CASE, LETTER_BY_LETTER, MANY, AlarmReader
from gemma4_triage.logs.batch_line import MARK, NAN_IN_BATCH, NOT_A_NUMBER, device_of, find_batch
from gemma4_triage.logs.batch_table import Rows, Table, TableReader, joined, single, time_text
from gemma4_triage.logs.document import unpacked
from gemma4_triage.logs.facts import Death, Device, LogFacts, Place, Pool, Process, Remark
from gemma4_triage.logs.lines import Block, Sieve, blocks_of_lines, lines_with
from gemma4_triage.logs.rank import RankReading
from gemma4_triage.logs.received import ReceivedReader
from gemma4_triage.logs.source import Source
from gemma4_triage.logs.stamp import NO_STAMP, Stamp, StampReader
from gemma4_triage.logs.starts_in_a_row import StartCounter
from gemma4_triage.logs.tracebacks import FRAME, INTRODUCTIONS, TRACEBACK, TracebackReader, tells_its_end, told_frame
from gemma4_triage.logs.unwrap import Unwrapper

DEFAULT_POINTS = 240
MAX_RANKS = 64
MAX_KEPT = 32
MAX_NAMED = 512
"""Files that a log may name: a guard manifest for each process of every start, and snapshots."""

# In the order in which they are looked for; a line is of the first kind that it fits.
_MARKS = (
    *((mark, "retraction") for mark in events.RETRACTIONS),
    (TRACEBACK, "traceback"),
    (events.GUARD_MARK, "guard"),
    *((mark, "leak") for mark in events.LEAK_MARKS),
    *((mark, "death") for mark in events.DEATH_MARKS),
    *((mark, "start") for mark in events.SERVER_ARGS),
    *((mark, "command") for mark in start_line.COMMANDS),
    *((mark, "named_file") for mark in events.NAMES_A_FILE),
    (events.POOL_SIZES, "pool_sizes"),
    (events.FAULT_MARK, "fault"),
    *((mark, f"remark {name}") for mark, name in remarks.MARKS),
    *((mark, "stack") for mark in remarks.STACKS),
    *((mark, "process") for mark in events.NAMES_A_PROCESS),
    *((mark, "note") for mark in start_line.NOTES),
    *((mark, "introduction") for mark in INTRODUCTIONS),
    (FRAME, "frame"),
    *((mark, "release") for mark in release.MARKS),
)
_BATCH_AND_MARKS = ((MARK, "batch"), *_MARKS)
_ANSWER = b'" 200 OK'
_OF_STEERING = (*remarks.COMMANDS, *values_asked.OF_CONTROL)
_OF_THE_WATCHDOG = 8
"""Lines below the watchdog's in which it prints the pools."""
_OUTPUTS_OF_A_ZOMBIE = 8
"""Outputs that nobody waits for, of one request: an abort leaves those of a step or two."""


def read_source(source: Source, points: int = DEFAULT_POINTS) -> LogFacts:
    """Return the whole of a log. Raises UsageMistake."""
    facts = read_log(source.name, source.chunks(), points)
    return replace(facts, problem=source.problem)


def read_log(name: str, chunks: Iterable[bytes], points: int = DEFAULT_POINTS) -> LogFacts:
    """points: of each time series at most, even."""
    reading = LogReading(name, points)
    for block in blocks_of_lines(unpacked(reading.measured(chunks))):
        reading.block(block)
    reading.end()
    return reading.facts()


@dataclass(slots=True)
class _Feed:
    """The rows that a block has of one scheduler, and how many of them have been taken in."""

    name: str
    rows: Rows
    fed: int = 0


class _Kept:
    """The first MAX_KEPT of something, and how many there were."""

    def __init__(self, other: _Kept | None = None) -> None:
        self.items: list = [] if other is None else [*other.items]
        self.count = 0 if other is None else other.count

    @property
    def is_full(self) -> bool:
        """Say whether others are counted only."""
        return len(self.items) >= MAX_KEPT

    def add(self, item) -> None:
        self.count += 1
        if len(self.items) < MAX_KEPT:
            self.items.append(item)


class LogReading:
    """Feed it blocks of lines, in order."""

    def __init__(self, name: str, points: int) -> None:
        self._name, self._points = name, points
        self._size = self._lines = self._long = 0
        self._torn = False
        self._understood: dict[str, int] = {}
        self._stamps = StampReader()
        self._waiting: tuple[bytes, bytes] | None = None
        self._first = self._last = ""
        self._times, self._timed = 0, set[bytes]()
        self._ranks: dict[str, RankReading] = {}
        self._dropped_rank_lines = 0
        self._last_rank: RankReading | None = None
        self._tables = TableReader()
        self._sieve = Sieve((*(mark for mark, _ in _BATCH_AND_MARKS), *LETTER_BY_LETTER), IN_LOWER_CASE)
        self._unwrapper = Unwrapper()
        self._table: Table | None = None
        self._feeds: list[_Feed] = []
        self._fed = 0
        self._tracebacks = TracebackReader()
        self._alarms = AlarmReader(self._place)
        self._stacks = remarks.StackReader()
        self._received = ReceivedReader()
        self._remarks: dict[str, Remark] = {}
        self._shown = 0
        self._watchdog = -_OF_THE_WATCHDOG
        self._end = ""
        self._stream = b""
        self._streams: dict[bytes, TracebackReader] = {}
        self._deaths, self._leaks, self._guards = _Kept(), _Kept(), _Kept()
        self._faults: dict[str, None] = {}
        self._named_files: dict[str, None] = {}
        self._pids: dict[Process, dict[int, None]] = {}
        self._rank_pids: dict[int, int] = {}
        self._starts = 0
        self._begun = StartCounter()
        self._orphans: dict[bytes, int] = {}
        self._settings: dict[str, str] = {}
        self._arguments: dict[str, str] = {}
        self._answered, self._noted = 0, False
        self._pool_tokens: dict[Pool, int] = {}
        self._device: Device = ""
        self._release = ""

    def measured(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the chunks, counted."""
        for chunk in chunks:
            self._size += len(chunk)
            yield chunk

    def block(self, block: Block) -> None:
        """Read a block: the numbers of a torn line are not believed, its words are."""
        self._lines = block.numbers[-1]
        self._torn = not block.whole
        self._long += block.long
        # Most lines are batch lines as SGLang wrote them; all others are looked at for what was put around them.
        table, rest = self._tables.split(block)
        bare = None if rest is None else self._unwrapper.block(rest)
        if bare is not None and bare.streams is not None:
            self._alarms.others.writers(bare.lines, bare.streams)
        if bare is not None and bare is not rest:
            unwrapped, bare = self._tables.split(bare)
            table = joined([part for part in (table, unwrapped) if part is not None])
        self._bare(table, bare)

    def _bare(self, table: Table | None, others: Block | None) -> None:
        """Take lines as SGLang wrote them: a table of batch lines, and all others of the same block."""
        self._table, self._fed = table, 0
        self._feeds = [] if table is None else self._feeds_of(table)
        if table is not None:
            self._received.works(int(table.rows.lines[-1]))
        if others is not None:
            self._received.block(others.text, others.lines, others.numbers)
            self._others(others)
            # A note below the log has no stamp.
            last = next((line for line in reversed(others.lines) if line and not line.startswith(b"#")), b"")
            self._end = self._stamps.read(last, len(last)).text or self._end
        self._catch_up(self._lines + 1)

    def _feeds_of(self, table: Table) -> list[_Feed]:
        """Return the rows of each scheduler, in the order in which they first appear; those of too many are counted."""
        self._device = self._device or table.device
        prefills = int(np.count_nonzero(table.rows.prefill))
        self._understand("prefill", prefills)
        self._understand("decode", len(table.ranks) - prefills)
        if len(table.names) == 1:
            return [_Feed(table.names[0], table.rows)]
        order = np.argsort(table.ranks, kind="stable")
        edges = np.flatnonzero(np.diff(table.ranks[order], prepend=-1, append=-1))
        groups = sorted((order[a:b] for a, b in pairwise(edges.tolist())), key=lambda group: group[0])
        feeds = []
        for group in groups:
            name = table.names[table.ranks[group[0]]]
            if name in self._ranks or len(self._ranks) + len(feeds) < MAX_RANKS:
                feeds.append(_Feed(name, table.rows.part(group)))
            else:
                self._dropped_rank_lines += len(group)
        return feeds

    def _catch_up(self, number: int) -> None:
        """Take in all batch lines of the table that stand before a line."""
        if self._table is None or self._fed == len(self._table.ranks):
            return
        rows = self._table.rows
        end = int(np.searchsorted(rows.lines, number))
        if end == self._fed:
            return
        self._first = self._first or time_text(int(rows.times[self._fed]))
        self._last = time_text(int(rows.times[end - 1]))
        self._fed = end
        self._alarms.works(int(rows.lines[end - 1]))
        latest = 0
        for feed in self._feeds:
            end = int(np.searchsorted(feed.rows.lines, number))
            if end == feed.fed:
                continue
            if (rank := self._rank(feed.name)) is None:
                self._dropped_rank_lines += end - feed.fed
            else:
                rank.add(feed.rows.part(slice(feed.fed, end)))
                if (line := int(feed.rows.lines[end - 1])) > latest:
                    latest, self._last_rank = line, rank
            feed.fed = end

    def _others(self, block: Block) -> None:
        lines, numbers, streams, answers = block.lines, block.numbers, block.streams, []
        # Answers are most of what is no batch line, and hold nothing that is looked for.
        if _ANSWER in block.text:
            asked = [not line.endswith(_ANSWER) for line in lines]
            if any(mark in block.text for mark in _OF_STEERING):
                # Answers to whoever steers the server are read as any other line.
                steers = [any(mark in line for mark in _OF_STEERING) for line in lines]
                self._answered += sum(line.endswith(_ANSWER) for line in compress(lines, steers))
                asked = [other or mine for other, mine in zip(asked, steers, strict=True)]
            answers = [number for number, other in zip(numbers, asked, strict=True) if not other]
            lines, numbers = list(compress(lines, asked)), list(compress(numbers, asked))
            streams = None if streams is None else list(compress(streams, asked))
            self._answered += len(answers)
        # Of a busy server's lines, which are alike, few have a word that anything looks for.
        few = self._sieve.pick(lines)
        # Of many that say the same one is searched.
        shapes = self._alarms.shapes([lines[at] for at in few]) if len(few) >= MANY else few
        distinct = dict(zip(reversed(shapes), reversed(few), strict=True))
        text = b"\n".join(lines[at] for at in distinct.values())
        ends = list(accumulate(len(lines[at]) + 1 for at in distinct.values()))
        names = list(distinct)
        kinds: dict[bytes | int, str] = {}
        for mark, kind in _BATCH_AND_MARKS if block.whole else _MARKS:
            for at in lines_with(mark, text, ends):
                kinds.setdefault(names[at], kind)
        said = {names[at] for at in self._alarms.begin(lines, text, ends, answers)}.union(kinds)
        concerned = [(at, shape) for at, shape in zip(few, shapes, strict=True) if shape in said]
        at = 0
        whole_runs = self._table is None and not answers
        one_writer = streams is None or len({*streams}) == 1
        last = -1
        for place, (goal, shape) in enumerate((*concerned, (len(lines), -1))):
            if place <= last:
                continue
            # Of an open traceback every line is looked at, whatever it holds; of all else those concerned.
            while at < goal and self._watching(streams is not None):
                self._other(numbers[at], lines[at], "", streams[at] if streams else b"")
                at += 1
            if goal == len(lines):
                break
            at = goal + 1
            kind = kinds.get(shape, "")
            by_words = isinstance(shape, bytes) and kind != "batch"
            if isinstance(shape, bytes) and by_words and not self._watching(streams is not None):
                self._catch_up(numbers[goal])
                self._alarms.answers_before(numbers[goal])
                if kind == "introduction" and not lines[goal].startswith(INTRODUCTIONS):
                    # It introduces none, and says no more than its words.
                    kind = ""
                    self._stamp_later(lines[goal], shape)
                each = kind not in ("", "death")
                if each and self._alarms.knows(shape):
                    if self._event(kind, numbers[goal], lines[goal]):
                        continue
                    kind = ""
                again = self._alarms.again(numbers[goal], lines[goal], shape) if kind != "death" else None
                ended = kind == "death" and whole_runs and one_writer and self._deaths.is_full
                if again is not None or ended:
                    if whole_runs and not each:
                        last = place
                        while last + 1 < len(concerned) and concerned[last + 1][1] == shape:
                            last += 1
                        goal = concerned[last][0]
                    at = goal + 1
                    if again or ended or shape in self._timed:
                        self._stamp_later(lines[goal], shape)
                    if again is not None and last > place:
                        self._alarms.count(again, last - place, numbers[goal], lines[goal])
                    if ended:
                        self._turn_to(streams[goal] if streams else b"")
                        self._ends_again(last - place + 1, numbers[goal], lines[goal])
                    continue
            self._stamp_now()
            name, before = shape if isinstance(shape, bytes) else None, self._times
            self._other(numbers[goal], lines[goal], kind, streams[goal] if streams else b"", name)
            if isinstance(shape, bytes) and by_words:
                self._alarms.remember(shape, lines[goal])
                self._remember_time(shape, self._times > before)
        self._stamp_now()
        self._alarms.answers_before(self._lines + 1)

    def _place(self, number: int, line: bytes) -> Place:
        return Place(number, self._stamps.read(line, len(line)).text)

    def _watching(self, several: bool) -> bool:
        """Say whether the next line has to be looked at, whatever it holds."""
        if self._tracebacks.watching or self._stacks.inside:
            return True
        return several and any(reader.watching for reader in self._streams.values())

    def _turn_to(self, stream: bytes) -> None:
        """Take up the traceback of a writer; of many writers the one that was silent longest is forgotten."""
        if stream == self._stream:
            return
        self._streams[self._stream] = self._tracebacks
        self._stream = stream
        self._tracebacks = self._streams.pop(stream, None) or TracebackReader()
        if len(self._streams) > MAX_RANKS:
            self._streams.pop(next(iter(self._streams)))

    def _other(self, number: int, line: bytes, kind: str, stream: bytes, shape: bytes | None = None) -> None:
        self._turn_to(stream)
        self._catch_up(number)
        self._alarms.answers_before(number)
        if kind == "batch":
            if self._batch(number, line):
                self._alarms.works(number)
                return
            kind = next((kind for mark, kind in _MARKS if mark in line), "")
        if self._tracebacks.watching and self._traceback_line(number, line):
            return
        if self._stacks.inside and self._stacks.line(line):
            return
        if kind and self._event(kind, number, line):
            return
        if alarm := self._alarms.kind_of(number, line, shape):
            stamp = self._stamp(line, len(line))
            self._alarms.add(alarm, line, stamp.rank, Place(number, stamp.text), self._tracebacks.caught)

    def _batch(self, number: int, line: bytes) -> bool:
        found = find_batch(line)
        if found is None:
            return False
        at, batch = found
        self._received.works(number)
        stamp = self._stamp(line, at)
        if b": nan" in line and NOT_A_NUMBER.search(line, at):
            self._remarks.setdefault(NAN_IN_BATCH, remarks.remark(line, stamp.rank, Place(number, stamp.text)))
        self._device = self._device or device_of(line)
        self._understand("prefill" if batch.prefill else "decode", 1)
        if (rank := self._rank(stamp.rank)) is not None:
            rank.add(single(batch, number, stamp.text))
            self._last_rank = rank
        return True

    def _event(self, kind: str, number: int, line: bytes) -> bool:
        """Say whether the line is what its mark promises; one that is not may still be an alarm."""
        if kind == "release":
            self._release = self._release or release.release_in(line)
            return False
        if kind in ("process", "stack"):
            for what, pid in events.process_ids(line):
                known = self._pids.setdefault(what, {})
                if len(known) < MAX_RANKS:
                    known[pid] = None
            self._rank_pids |= dict(events.scheduler_ranks(line)) if len(self._rank_pids) < MAX_RANKS else {}
        if kind == "process":
            # What else such a line says is looked at as before.
            return False
        # A cache is flushed by who asks for it, before and after all work: no sign of when the server served.
        read = self._stamps.read if kind == "remark flushed" else self._stamp
        stamp = read(line, len(line))
        place = Place(number, stamp.text)
        # Behind a command may stand a note of its own.
        spoken = start_line.comment(line) if kind == "command" and not line.startswith(b"#") else line
        said_in_notes.keep(self._remarks, spoken, place)
        of_another = notes_in_prose.keep(self._remarks, spoken, place) and spoken is line
        if (noted := notes_in_prose.stack_in(line, place)) is not None:
            self._stacks.add(noted)
        if kind.startswith("remark "):
            name = kind.removeprefix("remark ")
            self._remarks[name] = remarks.remark(line, stamp.rank, place)
            if name in remarks.FIRST_TOO:
                self._remarks.setdefault(f"first_{name}", self._remarks[name])
            remarks.keep_standing(self._remarks, name)
            pasted.keep(self._remarks, name, line)
            values_asked.keep(self._remarks, name, line)
            scores_noted.keep(self._remarks, name)
            if name == "orphan":
                self._orphan(line)
            if line.lstrip().startswith(FRAME) and not self._tracebacks.inside:
                # A frame may name what is looked for elsewhere, as in the path of torch_npu.
                self._tracebacks.begin_inside(line, stamp.rank, place)
                self._shown = number
            return False
        if kind == "stack":
            self._stacks.begin(line, stamp.rank, place)
            if line.find(remarks.STACKS[0]) >= 0:
                self._remarks[remarks.DUMPED] = remarks.remark(line, stamp.rank, place)
        elif kind == "traceback":
            self._shown = number
            if self._tracebacks.begin(line, stamp.rank, place):
                self._understand(kind, 1)
            return True
        if kind == "frame":
            if not self._tracebacks.inside:
                self._tracebacks.begin_inside(line, stamp.rank, place)
                self._shown = number
            return False
        if kind == "introduction":
            if b" dumped core" in line:
                return False
            self._tracebacks.introduce(line)
            return self._tracebacks.watching
        if kind == "guard":
            if (guard := events.guard_line(line, place)) is None:
                return False
            self._guards.add(guard)
        elif kind == "retraction":
            if (rank := self._rank(stamp.rank)) is not None:
                rank.retracted(events.retracted_requests(line), number, stamp)
            if line.find(events.RETRACTIONS[1]) >= 0:
                self._remarks["old_retraction"] = remarks.remark(line, stamp.rank, place)
        elif kind == "leak":
            # The watchdog prints the pools of a batch that runs: its tokens are in no term.
            if b"] total=" in line and number - self._watchdog <= _OF_THE_WATCHDOG:
                self._understand(kind, 1)
                return True
            # An equation that holds is no leak; a leak without an equation, as other releases have it, is an alarm.
            if not self._leak(line.decode(errors="replace"), place) and b"] total=" not in line:
                return False
        elif kind == "death" and not any(mark in line for mark in OF_AN_ANSWER):
            # Where somebody caught it, its traceback ends in this very line.
            self._die(Death(place, stamp.rank, "", events.death_message(line), self._tracebacks.survived))
            self._below_death(number, line)
        elif kind == "start":
            self._starts += 1
            self._alarms.others.begins()
            self._settings = events.settings(line)
            self._arguments = start_line.arguments(line)
            writer = self._stream, stamp.rank
            self._begun.begin(self._remarks, self._arguments, writer, place, self._alarms.stopping)
            for name in remarks.FIRST_TOO:
                self._remarks.pop(f"first_{name}", None)
        elif kind in ("command", "note"):
            other_platform.keep(self._remarks, line, place)
            just_installed.keep(self._remarks, line, place)
            host_pools.keep(self._remarks, line, place)
            if kind == "command":
                images.keep(self._remarks, line, place)
                remarks.keep_benchmark(self._remarks, line, place)
            split_sides.keep(self._remarks, line, place)
            if pasted.is_of_a_client(line):
                self._alarms.client_at(number)
            if pasted.keep_note(self._remarks, line, place) or of_another:
                # Its arguments are another start's.
                return False
            # What the server itself prints of its arguments says more, and what they came to.
            if not self._starts and (typed := (start_line.typed if kind == "command" else start_line.noted)(line)):
                variables = {name: value for name, value in self._arguments.items() if name.isupper()}
                self._arguments = {**variables, **typed} if kind == "command" else {**typed, **self._arguments}
                self._settings = events.asked_for(self._arguments)
                self._noted = self._noted or (kind == "note" and len(self._settings) > 1)
            elif self._starts and kind == "note" and (given := start_line.environment(line)):
                # The environment stands in no start line.
                self._arguments = {**self._arguments, **given}
                self._settings = {**self._settings, **given}
            if kind == "command" and (b"vllm" in line or start_line.OF_VLLM in line):
                self._remarks["vllm"] = remarks.remark(line, stamp.rank, place)
            return False
        elif kind == "named_file":
            if (named := events.named_file(line)) and len(self._named_files) < MAX_NAMED:
                self._named_files[named] = None
            # What else such a line says is looked at as before.
            return False
        elif kind == "pool_sizes":
            self._pool_tokens = events.pool_tokens(line)
        elif kind == "fault" and (fault := events.injected_fault(line)) and len(self._faults) < MAX_KEPT:
            self._faults[fault] = None
        self._understand(kind, 1)
        return True

    def _below_death(self, number: int, line: bytes) -> None:
        self._tracebacks.survived = ()
        self._watchdog = number if b"atchdog" in line else self._watchdog

    def _ends_again(self, times: int, number: int, line: bytes) -> None:
        """Count ends of processes that the log has told of often enough; the last one's number and line."""
        self._deaths.count += times
        self._below_death(number, line)
        self._understand("death", times)

    def _orphan(self, line: bytes) -> None:
        """Count an output of a request that nobody waits for; a step or two of one are what every abort leaves."""
        found = remarks.ORPHANS.search(line)
        rid = found[1] if found else b""
        if rid in self._orphans or len(self._orphans) < MAX_KEPT:
            self._orphans[rid] = self._orphans.get(rid, 0) + 1
            if self._orphans[rid] == _OUTPUTS_OF_A_ZOMBIE:
                self._remarks["zombie"] = self._remarks["orphan"]

    def _leak(self, text: str, place: Place) -> bool:
        found = events.leaks(text, place)
        for leak in found:
            self._leaks.add(leak)
        return bool(found)

    def _traceback_line(self, number: int, line: bytes) -> bool:
        """Say whether the line belongs to a traceback; a line with a stamp is another process's, and ends none."""
        if self._tracebacks.is_bare and b"] total=" in line:
            # The pools' equation, which a traceback that is shortened to nothing ends in.
            if (leaked := self._tracebacks.leaked(line)) is not None:
                self._die(leaked)
            return False
        if TRACEBACK in line or (line.startswith(b"[2") and self._stamp(line, len(line)) is not NO_STAMP):
            return False
        if self._tracebacks.inside and line.startswith(b"# ") and not tells_its_end(line):
            # Somebody wrote below what was cut off.
            self._shown = number
            if told_frame(line) is not None:
                self._tracebacks.line(line)
            return False
        self._shown = number
        if (longer := self._tracebacks.detailed(line)) is not None:
            self._deaths.items = [
                replace(item, message=longer.message) if item.place == longer.place else item
                for item in self._deaths.items
            ]
            return True
        was_inside = self._tracebacks.inside
        belongs, death = self._tracebacks.line(line)
        if was_inside and not self._tracebacks.inside and self._tracebacks.caught is not None:
            self._alarms.raised_at(number)
        if self._tracebacks.cancelled:
            self._remarks["cancelled"] = Remark(Place(number), "", self._tracebacks.cancelled)
            self._tracebacks.cancelled = ""
        if death is not None:
            self._leak(death.message, death.place)
            self._die(death)
        if belongs:
            self._understand("traceback", 1)
        return belongs

    def _die(self, death: Death) -> None:
        # Of a flood the first ones are kept, and the others counted.
        self._deaths.add(death if self._deaths.is_full else self._with_usage(death))

    def _with_usage(self, death: Death) -> Death:
        rank = self._ranks.get(death.rank)
        usage = None if rank is None else rank.usage
        if usage is None and self._last_rank is not None:
            usage = self._last_rank.usage
        return replace(death, usage=usage)

    def _stamp(self, line: bytes, end: int) -> Stamp:
        stamp = self._stamps.read(line, end)
        self._times += 1
        if stamp.text:
            self._first = self._first or stamp.text
            self._last = stamp.text
        return stamp

    def _remember_time(self, shape: bytes, was_taken: bool) -> None:
        """Note whether the time of a line was taken, for those that are like it and of which no more is of interest."""
        if len(self._timed) >= MAX_NAMED:
            self._timed.clear()
        if was_taken:
            self._timed.add(shape)

    def _stamp_later(self, line: bytes, shape: bytes) -> None:
        """Take a line of which no more is of interest than when it was; of lines that are alike, the last one is."""
        if self._waiting is not None and self._waiting[1] != shape:
            self._stamp_now()
        self._waiting = line, shape

    def _stamp_now(self) -> None:
        if self._waiting is not None:
            line, self._waiting = self._waiting[0], None
            self._stamp(line, len(line))

    def _rank(self, name: str) -> RankReading | None:
        found = self._ranks.get(name)
        if found is None:
            if len(self._ranks) >= MAX_RANKS:
                self._dropped_rank_lines += 1
                return None
            found = self._ranks[name] = RankReading(name, self._points)
        return found

    def _understand(self, kind: str, lines: int) -> None:
        if lines:
            self._understood[kind] = self._understood.get(kind, 0) + lines

    def end(self) -> None:
        """Take in what was held back for a rest that never came."""
        for block in self._unwrapper.rest():
            self._bare(None, block)

    def _processes(self) -> dict[Process, tuple[int, ...]]:
        found: dict[Process, tuple[int, ...]] = {what: tuple(pids) for what, pids in self._pids.items()}
        if self._unwrapper.pids:
            found["outside"] = tuple(self._unwrapper.pids)
        return found

    def facts(self) -> LogFacts:
        """Return what has been learnt of the log up to the last line that was read."""
        self._stacks.end()
        deaths = _Kept(self._deaths)
        at_end = self._shown == self._lines
        open_ones = (reader.torn(at_end) for reader in (self._tracebacks, *self._streams.values()))
        torn = [death for death in open_ones if death is not None and death.place.line > self._alarms.last_work]
        for death in sorted((*torn, *self._alarms.errors()), key=lambda one: one.place.line):
            deaths.add(self._with_usage(death))
        alarms = self._alarms.alarms()
        if not deaths.items and not any(alarm.kind in FATAL for alarm in alarms):
            noted = said_in_notes.noted_death(self._remarks, self._alarms.last_work)
            deaths.items += [self._with_usage(noted)] if noted is not None else []
        told = sum(alarm.count for alarm in alarms)
        of_a_start = 0 if self._understood else len(remarks.OF_A_START.intersection(self._remarks))
        # Of any program's answers: those of a server whose start is here, or whose command.
        answers = self._answered or pasted.answers(self._remarks)
        answered = answers if not self._understood and (of_a_start or self._arguments) else 0
        return LogFacts(
            name=self._name,
            size_bytes=self._size,
            lines=self._lines,
            understood=self._understood
            | ({"alarm": told} if told else {})
            | ({"remark": of_a_start} if of_a_start else {})
            | ({"answer": answered} if answered else {})
            | ({"note": 1} if self._noted and not (self._understood or answered or of_a_start) else {})
            # What is torn on both sides is a traceback all the same.
            | ({"traceback": len(torn)} if torn and not self._understood else {}),
            device=self._device,
            torn_last_line=self._torn,
            long_lines=self._long,
            problem=None,
            first_time=self._first,
            last_time=self._last,
            end_time=max(self._last, self._end),
            release=self._release,
            starts=self._starts,
            settings=self._settings,
            arguments=self._arguments,
            pool_tokens=self._pool_tokens,
            faults=tuple(self._faults),
            named_files=tuple(self._named_files),
            pids=self._processes(),
            rank_pids=self._rank_pids,
            ranks=tuple(rank.facts() for rank in self._ranks.values()),
            dropped_rank_lines=self._dropped_rank_lines,
            deaths=tuple(deaths.items),
            death_count=deaths.count,
            leaks=tuple(self._leaks.items),
            leak_count=self._leaks.count,
            guards=tuple(self._guards.items),
            guard_count=self._guards.count,
            alarms=alarms,
            unserved=self._received.unserved(self._place),
            remarks=self._remarks,
            stacks=tuple(self._stacks.stacks),
            errors=tuple(self._alarms.caught),
            program_lines=self._alarms.program_lines,
        )
