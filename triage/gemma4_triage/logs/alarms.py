"""The floor under "no findings": lines that say that something died, failed, hung or became NaN, without a cause.

Batch lines and tracebacks are read elsewhere; every other line is held against the words here. A hard alarm stands
whatever follows it. A soft one (a last line of an exception, "timed out", "failed") stands only if no work follows:
servers log errors that they survive.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import compress

from gemma4_triage.logs.alarm_words import (
    OF_A_STOP,
    OF_A_TEST,
    STARTS,
    STOPS,
    SURVIVABLE,
    TRIGGERS,
    TYPED,
    WORKS,
    kind_by_words,
)
from gemma4_triage.logs.ends_of_others import EndsOfOthers
from gemma4_triage.logs.facts import Alarm, Death, Place
from gemma4_triage.logs.lines import DIGITS, lines_with
from gemma4_triage.logs.tracebacks import as_raised, death_of

_PROGRAM = re.compile(rb"(?:INFO|WARNING|ERROR|DEBUG|CRITICAL)\b|\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d|Traceback |  File ")
_CRASH_FRAME = re.compile(r'  File "([^"]+)", line (\d+) in (\S+)')
# As torch prints the stack of a signal: 'File "<unknown>", line 0, in void name<1>(args)'.
_NATIVE_FRAME = re.compile(r'  File "<unknown>", line 0, in (?:[\w:]+(?:<.*?>)?[*&]* )?([\w:~]+)')
IN_NATIVE = "C++ "
"""Where the name of a function of native code begins among what is kept of a crash."""
_RIGHT_BELOW = 3  # lines
_CRASH_FRAMES, _NEAR = 3, 40  # frames; lines from the crash to its stack
_GROUP = re.compile(rb" {2,}\| ?")  # of a traceback within a group of exceptions
_LAST_LINE = re.compile(r"(?:- )?(?:\w+\.)*(\w+)(?:\(\))?(?:: (.*)|:)?")
_TRIED = re.compile(r"^\w[\w-]{0,30}=\S{1,60} +(?=(?:\w+\.)+\w)")  # of a list of what was tried
_LISTS = re.compile(r"\[[\w.]+\] CRITICAL: ")
_RAISED = re.compile(rb"(?:[\w.]+\.)?\w*(?:Error|Exception): ")
_LONGEST_LINE = 2000  # bytes of a line that are looked at
_LONGEST_TEXT = 500  # characters: of transfers the state in which they ended stands last
_FRAMES = 12
_AGAIN, _SOON = re.compile(rb"[Rr]etry|[Rr]esum"), 3  # what follows a failure within so many lines, and makes it good
_ANSWERED = re.compile(rb'HTTP/\d(?:\.\d)?" 500\b')
_AGAIN_MARKS = (b"retry", b"resum", b"hread 0x")  # in lower case
_ACCESS = b" HTTP/"
_BY_A_PROXY = re.compile(rb'"[A-Z]{3,7} https?://[^" ]+ HTTP/')
IN_LOWER_CASE = (*TRIGGERS, *_AGAIN_MARKS)
LETTER_BY_LETTER = (*WORKS, *STOPS, *STARTS, _ACCESS)
"""One of these, or of IN_LOWER_CASE in any case, is in every line that concerns alarms."""
_MOST_ERRORS = 8
_ENDS = frozenset({"killed", "signalled", "child"})
_REASON = b"Value error, "
_MOST_KEPT = 16
_OF_A_REQUEST = re.compile(rb"Exception in ASGI application|\bError in request: ")
_OF_CLIENTS = re.compile(
    rb"openai\.(?:API)?(?:Timeout|Connection)Error\b|AI_\w+Error\b|SyntaxError: Unexpected (?:token|end of JSON)"
)
_LONGEST_ANSWER = 400  # lines of the traceback of a request
_ENOUGH_LINES = 1000


# Numbers that differ from line to line and change no kind: every other one may be an exit code or a status. Each
# expression begins with what few characters are, which is what makes it fast.
_HEXADECIMAL = re.compile(rb"[0-9a-f]{8,}")
_ADDRESS = re.compile(rb"0x[0-9a-f]+")
_OF_ONE_LINE = re.compile(rb"\d(?:\d*(?:\.\d+){3}(?::\d+)?|\d:\d\d:\d\d(?:[.,]\d+)?|\d{3,})")
# Codes, statuses, marks that hold a digit, a number at the end (a count of failures), a stamp within the line.
_NUMBERS_MATTER = re.compile(rb"(?i)exit|status|code|signal|with -|http|hread x|^\s|=>|[:=]\s*\.?\s*$|.\[-- ::|^E ::")
_HAS_FRAMES = re.compile(rb"^ |hread 0x|\| ")
_MOST_SHAPES = 20_000
MANY = 64
"""Lines of a block that concern alarms: of fewer it is not worth while to ask which are alike."""


class AlarmReader:
    """Takes every line that is neither a batch line nor part of a traceback, in order; keeps one alarm of a kind."""

    def __init__(self, place: Callable[[int, bytes], Place]) -> None:
        """Begin with no alarm.

        Args:
            place: Makes the place of a line, of its number and its text.
        """
        self._place = place
        self._hard: dict[str, Alarm] = {}
        self._soft: Alarm | None = None
        self._errors: list[Death] = []
        self._frames_below: list[bytes] = []
        self._below = 0
        self.caught: list[Death] = []
        self._frames: deque[bytes] = deque(maxlen=_FRAMES)
        self.last_work = 0
        self.others = EndsOfOthers()
        self._stopping = False
        self._of_the_crash = True
        self._stack_at = 0
        self.program_lines = 0
        self._triggers = list(TRIGGERS)
        self._work_marks = list(WORKS)
        self._answers: list[int] = []
        self._answers_seen = 0
        self._of_a_request = self._client = -_LONGEST_ANSWER
        self._raised = 0
        # What was made of a line, by what it is without numbers of its own: a kind, or "" of none.
        self._shapes: dict[bytes, str] = {}
        self._by_number: dict[bytes, bool] = {}
        self._kinds: dict[bytes, str] = {}
        self._worded: str | None = None
        self._counts: dict[str, int] = {}
        self._lasts: dict[str, tuple[int, bytes]] = {}

    def shapes(self, lines: list[bytes]) -> list[bytes]:
        """Return for each line what all lines have that say the same: its words, its rank, and numbers that matter."""
        text = b"\n".join(lines)
        found = text.translate(None, DIGITS).split(b"\n")
        if len(self._by_number) >= _MOST_SHAPES:
            self._by_number.clear()
        for bare in {*found}.difference(self._by_number):
            self._by_number[bare] = _NUMBERS_MATTER.search(bare) is not None
        by_number = list(compress(range(len(found)), map(self._by_number.__getitem__, found)))
        if b"[2" in text:
            found = [
                bare + line[20 : line.find(b"]", 20, 60)] if line[:2] == b"[2" else bare
                for line, bare in zip(lines, found, strict=True)
            ]
        if by_number:
            text = b"\n".join([lines[at] for at in by_number])
            text = _ADDRESS.sub(b"0x1", text) if b"0x" in text else text
            shapes = _OF_ONE_LINE.sub(b"1", _HEXADECIMAL.sub(b"1", text)).split(b"\n")
            for at, shape in zip(by_number, shapes, strict=True):
                found[at] = shape
        return found

    def knows(self, shape: bytes) -> bool:
        """Say whether a line like it was looked at."""
        return shape in self._shapes

    def again(self, number: int, line: bytes, shape: bytes) -> str | None:
        """Take a line like one that was looked at, if no more than its count is of interest.

        A flood of the same failure is read so: of each kind the first lines are kept, and the last one's place.

        Returns: its kind, "" of none; None if `kind_of` has to look at it.
        """
        kind = self._shapes.get(shape)
        soft = self._soft
        if kind is None or (soft is not None and number <= soft.place.line + _SOON):
            return None
        if self._frames and (not kind or kind in SURVIVABLE or _RAISED.match(line)):
            return None
        if not kind:
            return ""
        if self._stopping and kind in OF_A_STOP:
            return None
        if kind in SURVIVABLE:
            stands = soft is not None and soft.place.line >= self.last_work
            told = kind != "error" or (
                len(self._errors) >= _MOST_ERRORS and number > self._of_a_request + _LONGEST_ANSWER
            )
            return kind if stands and told else None
        known = self._hard.get(kind)
        if known is None or len(known.more) < _MOST_KEPT:
            return None
        self._counts[kind] = self._counts.get(kind, 0) + 1
        self._lasts[kind] = number, line
        return kind

    def count(self, kind: str, more: int, number: int, line: bytes) -> None:
        """Take more lines like the one that `again` has just taken, with nothing between them; the last one's place."""
        if more and kind in self._counts:
            self._counts[kind] += more
            self._lasts[kind] = number, line

    def _settle(self, kind: str) -> None:
        """Take the lines that `again` has counted into what is kept of their kind."""
        if count := self._counts.pop(kind, 0):
            known = self._hard[kind]
            self._hard[kind] = replace(known, count=known.count + count, last=self._place(*self._lasts[kind]))

    def remember(self, shape: bytes, line: bytes) -> None:
        """Keep what `kind_of` has just made of a line by its words alone."""
        kind, self._worded = self._worded, None
        # Of a crash the lines below it are counted from the last one; an answer's failure comes with its traceback.
        if kind in (None, "exception", "signalled") or _HAS_FRAMES.search(line) or _OF_A_REQUEST.search(line):
            return
        if len(self._shapes) >= _MOST_SHAPES:
            self._shapes.clear()
        self._shapes[shape] = kind or ""

    def begin(self, lines: list[bytes], text: bytes, ends: list[int], answers: list[int]) -> set[int]:
        """Return which lines of a text, which come next, concern `kind_of`.

        Args:
            lines: all but batch lines and answers.
            text: those of them that hold one of IN_LOWER_CASE or LETTER_BY_LETTER, and others, with a newline between.
            ends: where in the text the line behind each of its lines begins, by whose index lines are returned.
            answers: the numbers, in the log, of the answers among them, which are work.
        """
        if self.program_lines < _ENOUGH_LINES:
            self.program_lines += sum(_PROGRAM.match(line) is not None for line in lines[:_ENOUGH_LINES])
        low = text.lower()
        self._answers, self._answers_seen = answers, 0
        self._triggers = [trigger for trigger in TRIGGERS if trigger in low]
        self._work_marks = [mark for mark in (*WORKS, *STOPS, *STARTS) if mark in text]
        concerned: set[int] = set()
        for mark in (*self._triggers, *_AGAIN_MARKS):
            concerned.update(lines_with(mark, low, ends))
        for mark in (*self._work_marks, _ACCESS):
            concerned.update(lines_with(mark, text, ends))
        return concerned

    def answers_before(self, number: int) -> None:
        """Take note of the answers that stand before a line."""
        if self._answers_seen < len(self._answers) and self._answers[self._answers_seen] < number:
            self._answers_seen = bisect_left(self._answers, number)
            self.works(self._answers[self._answers_seen - 1])

    def works(self, number: int) -> None:
        """Take note of a line that only a working server writes: what was soft before it was survived."""
        self.last_work = max(self.last_work, number)
        self.others.works()

    def kind_of(self, number: int, line: bytes, shape: bytes | None = None) -> str:
        """Return the kind of alarm that a line is; "" if it is none.

        Args:
            number: Of the line.
            line: As it stands.
            shape: What `shapes` has of it, where that was asked: what its words say is then known of the first one.
        """
        self._worded = None
        line = as_raised(line[:_LONGEST_LINE])
        if line[:1] == b" " and b"| " in line[:16]:
            line = _GROUP.sub(b"", line, count=1)
        if TYPED.match(line):
            return ""
        if self._errors and line.lstrip().startswith(_REASON):
            self._add_reason(number, line)
            return ""
        self._add_below(number, line)
        if b"hread 0x" in line:
            self._shapes.clear()
            # faulthandler prints every thread; the one that crashed is the current one, or the first where none is.
            crash = self._hard.get("signalled")
            first = crash is not None and number - (crash.last or crash.place).line <= _RIGHT_BELOW
            current = line.startswith(b"Current thread")
            self._of_the_crash = first or current
            if current and crash is not None and crash.last is None:
                # The newest thread comes first, so the main one, which crashes most, may be the last of a hundred.
                self._stack_at = number
                others = tuple(text for text in crash.more if ".py:" not in text)
                self._hard["signalled"] = replace(crash, more=others)
        if line.startswith(b"  File "):
            self._frames.append(line)
            self._crash_frame(number, line)
            return ""
        if self._frames and line.startswith(b"    "):
            # What a traceback quotes of its source says nothing of its own.
            return ""
        # uvicorn: '"POST /generate HTTP/1.1" 200 OK'. A refusal is an answer too.
        if line.partition(b" HTTP/")[2].partition(b'" ')[2][:1] in (b"2", b"4") and not _BY_A_PROXY.search(line):
            self.last_work = number
            return ""
        if self._work_marks and any(mark in line for mark in self._work_marks):
            self.last_work = number
            if any(mark in line for mark in STARTS):
                self.others.begins()
            self._stopping = not any(mark in line for mark in STARTS) and (
                self._stopping or any(mark in line for mark in STOPS)
            )
            return ""
        # An exception that a client was told of as a 500 has ended a request, and no process.
        if self._soft is not None and number <= self._soft.place.line + _SOON and _ANSWERED.search(line):
            self.last_work = self._soft.place.line
        if self._soft is not None and number <= self._soft.place.line + _SOON and _AGAIN.search(line):
            self.last_work = number
            return ""
        below = bool(self._frames) or number == self._raised
        self._worded = None if below else ""
        if shape is None or below:
            kind = self._kind_by_words(line, below)
        elif (kind := self._kinds.get(shape)) is None:
            if len(self._kinds) >= _MOST_SHAPES:
                self._kinds.clear()
            kind = self._kinds[shape] = self._kind_by_words(line, below)
        if not kind:
            return ""
        if kind in ("error", "failed") and not self._frames and self._is_of_a_client(number, line):
            return ""
        self._worded = None if kind == "error" and below else kind
        early = kind in ("unhealthy", "answered-503") and not self.last_work
        if self.last_work and OF_A_TEST.match(line):
            return ""
        return "" if early or (self._stopping and kind in OF_A_STOP) else kind

    @property
    def stopping(self) -> bool:
        """Whether a line since the last start says that somebody stopped the server."""
        return self._stopping

    def raised_at(self, number: int) -> None:
        """Take note of a line that ends a traceback, frames or none."""
        self._raised = number

    def client_at(self, number: int) -> None:
        """Take note of a line by which somebody says that a client wrote what follows."""
        self._client = number

    def _is_of_a_client(self, number: int, line: bytes) -> bool:
        """Say whether an exception without frames is a client's: it ends no process of the server."""
        return 0 < number - self._client <= _SOON or _OF_CLIENTS.match(line) is not None

    def _add_reason(self, number: int, line: bytes) -> None:
        """Add the reason that stands below the title of a ValidationError to its message."""
        last = self._errors[-1]
        if 0 < number - last.place.line <= _RIGHT_BELOW and "validation error" in last.message:
            reason = line[:_LONGEST_LINE].decode(errors="replace").strip()
            whole = replace(last, message=f"{last.message} {reason}"[:_LONGEST_TEXT])
            self._errors[-1] = whole
            self.caught = [whole if one is last else one for one in self.caught]

    def _add_below(self, number: int, line: bytes) -> None:
        """Take what stands right below an exception: the message that its own line lacks, or frames that it lacks."""
        last = self._errors[-1] if self._errors else None
        if last is None or not 0 < number - last.place.line <= _NEAR:
            return
        text = line[:_LONGEST_LINE].decode(errors="replace").strip()
        whole = last
        if _LISTS.match(last.message):
            # What was tried is listed further down, each with an exception of its own.
            whole = replace(last, message=f"{last.message} {text}"[:_LONGEST_TEXT]) if line[:2] == b"- " else last
        elif number != max(last.place.line, self._below) + 1:
            return
        elif line.startswith(b"  File ") and (not last.frames or self._below):
            self._below = number
            self._frames_below.append(line)
            named = death_of(last.place, last.rank, last.type_name, last.message, tuple(self._frames_below))
            whole = replace(named, chain=last.chain)
        elif self._below == number - 1 and line.startswith(b"    "):
            self._below = number
        elif not last.message and number == last.place.line + 1 and (line[:1].isspace() or _LISTS.match(text)):
            whole = replace(last, message=text[:_LONGEST_TEXT])
        if whole is not last:
            self._errors[-1] = whole
            self.caught = [whole if one is last else one for one in self.caught]

    def _kind_by_words(self, line: bytes, below: bool) -> str:
        low = line.lower()
        if not self._triggers or not any(trigger in low for trigger in self._triggers):
            return ""
        return kind_by_words(line, below)

    def _crash_frame(self, number: int, line: bytes) -> None:
        """Keep the innermost frames of what faulthandler prints below a crash in native code."""
        crash = self._hard.get("signalled")
        text = line.decode(errors="replace")
        if crash is not None and (native := _NATIVE_FRAME.match(text)) is not None:
            name = f"{IN_NATIVE}{native[1]}"
            if number <= crash.place.line + _NEAR and len(crash.more) < _CRASH_FRAMES:
                self._hard["signalled"] = replace(crash, more=(*crash.more, name))
            return
        found = _CRASH_FRAME.match(text) if crash is not None else None
        if (
            crash is None
            or not self._of_the_crash
            or found is None
            or sum(".py:" in text for text in crash.more) >= _CRASH_FRAMES
            or number > max(crash.place.line, self._stack_at) + _NEAR
        ):
            return
        frame = f"{found[1].rsplit('/', 1)[-1]}:{found[2]} {found[3]}"
        self._hard["signalled"] = replace(crash, more=(*crash.more, frame))

    def add(self, kind: str, line: bytes, rank: str, place: Place, caught: Death | None = None) -> None:
        """Keep a line whose kind `kind_of` has named.

        Args:
            kind: of what it says.
            line: as it stands.
            rank: which scheduler wrote it.
            place: where it stands.
            caught: the exception that the last traceback of no process's end told of, which this line may end.
        """
        line = as_raised(_GROUP.sub(b"", line, count=1))
        if kind in _ENDS:
            if kind not in self._hard and self.others.holds(kind, line, rank, place):
                return
            self._take_held()
        self._add(kind, line, rank, place, caught)

    def _take_held(self) -> None:
        for one in self.others.standing():
            self._add(one.kind, one.line, one.rank, one.place, None)

    def _add(self, kind: str, line: bytes, rank: str, place: Place, caught: Death | None) -> None:
        alarm = Alarm(kind, place, rank, line[:_LONGEST_LINE].decode(errors="replace").strip()[:_LONGEST_TEXT])
        if kind == "exception":
            self._of_a_request = -_LONGEST_ANSWER
        elif kind == "answered-500" and _OF_A_REQUEST.search(line):
            self._of_a_request = place.line
        raised = bool(self._frames) and _RAISED.match(line) is not None
        if kind in SURVIVABLE or raised:
            # Below frames it is an exception, which says more with them, whatever else its words are a sign of.
            self._keep_soft(replace(alarm, kind="error") if raised else alarm, caught)
        if kind in SURVIVABLE:
            return
        self._settle(kind)
        if (known := self._hard.get(kind)) is None:
            self._hard[kind] = alarm
        else:
            ranks = (
                known.ranks
                if rank in (known.rank, *known.ranks) or len(known.ranks) >= _MOST_KEPT
                else (*known.ranks, rank)
            )
            more = known.more if len(known.more) >= _MOST_KEPT else (*known.more, alarm.text)
            self._hard[kind] = replace(known, count=known.count + 1, last=place, ranks=ranks, more=more)

    def _keep_soft(self, alarm: Alarm, caught: Death | None) -> None:
        if self._soft is None or self._soft.place.line < self.last_work:
            self._soft, self._errors = alarm, []
        if alarm.kind == "error" and len(self._errors) < _MOST_ERRORS:
            match = _LAST_LINE.fullmatch(_TRIED.sub("", alarm.text))
            if match is not None:
                tried = (
                    f" (one of those that were tried: {named[0].strip()})"
                    if (named := _TRIED.match(alarm.text))
                    else ""
                )
                error = death_of(alarm.place, alarm.rank, match[1], (match[2] or "") + tried, tuple(self._frames))
                if caught is not None and (caught.type_name, caught.message[:_NEAR]) == (
                    match[1],
                    error.message[:_NEAR],
                ):
                    error = replace(caught, place=alarm.place, rank=alarm.rank, chain=alarm.place.line)
                self._errors.append(error)
                self.caught = [*self.caught, self._errors[-1]][-_MOST_ERRORS:]
        if alarm.kind == "error" and alarm.place.line <= self._of_a_request + _LONGEST_ANSWER:
            # uvicorn answers first, and then writes down of what the request failed.
            self.last_work = max(self.last_work, alarm.place.line)
        self._frames.clear()

    def alarms(self) -> tuple[Alarm, ...]:
        """Return the alarms that stand: the hard ones as in the log, then the soft one that no work followed."""
        self._take_held()
        for kind in tuple(self._counts):
            self._settle(kind)
        hard = sorted(self._hard.values(), key=lambda alarm: alarm.place.line)
        soft = self._soft
        return (*hard, soft) if soft is not None and soft.place.line > self.last_work else tuple(hard)

    def errors(self) -> list[Death]:
        """Return the exceptions after which no work was seen, in the order of the log."""
        return [error for error in self._errors if error.place.line > self.last_work]
