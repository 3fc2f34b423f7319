"""What stands before a line that SGLang wrote: known forms of containers and log collectors, and forms learnt.

A form of somebody's own is learnt from the frames of tracebacks and from SGLang's stamps, which look the same in every
log. Exactly the prefix is taken off: the indentation behind it says what a line of a traceback is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

from gemma4_triage.logs.lines import DIGITS, MAX_LINE_BYTES

_DAY = rb"\d{4}[-/]\d\d[-/]\d\d"
_CLOCK = rb"\d\d:\d\d:\d\d(?:[.,]\d{1,9})?"
_TIME = _DAY + rb"[T ]" + _CLOCK + rb"(?:Z| ?[+-]\d\d:?\d\d| UTC)?"
_MONTH = rb"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_WEEKDAY = rb"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_LEVEL = rb"(?:TRACE|DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|CRITICAL|FATAL)"
_RAISED = rb"[\w.]+(?:Error|Exception)(?:: |\s*$)"
_UNIT = rb"(?:[\w@./:-]{1,80}\[\d+\]|kernel|sglang[\w.@-]*|docker[\w.@-]*|python[\d.]*): "

_KNOWN = (
    rb"(?:> ?)+",  # quoted
    rb"(?:\||\xe2\x94[\x82\x83]|\xe2\x95\x91|\xe2\x96[\x8c\x8e\x8f])(?: |$)",  # a bar, as of a table, a box or a chat
    rb"\d{1,4}\|[\w.-]{1,60} *\| ?",  # PM2
    rb"\[" + _DAY + rb"(?:T|, )" + _CLOCK + rb"(?:Z|[+-]\d\d:?\d\d| UTC)?\] ?"  # Jenkins
    rb"(?:\{[\w./-]{1,100}:\d{1,6}\} " + _LEVEL + rb" - )?",  # Airflow
    rb"\[\d{4}/\d\d/\d\d " + _CLOCK + rb"\] ?",
    rb"\[ *\d{1,9}\.\d{3,9}\] (?:[\w.-]{1,80} " + _UNIT + rb")?",  # dmesg, journald's short-monotonic
    rb"\d{10}(?:\.\d{1,9}|\d{3}|\d{6}|\d{9})?[ \t]",  # a clock in seconds or parts of them
    rb"MESSAGE=",  # journald's export
    rb"_bk;t=\d{1,16}\x07",  # Buildkite
    rb"[\w.@-]{1,100} *\|(?: |$)",  # docker compose, docker service logs
    rb"\[pod/[\w./-]{1,200}\] ?",  # kubectl logs --prefix
    _TIME + rb" (?:stdout|stderr) [FP](?: |$)",  # CRI
    _TIME + rb" [0-9a-f]{2}[OE](?:[ +]|$)",  # GitLab
    _TIME + rb"[ \t]+[\w./-]{1,100}(?:: |\t)(?=\{)",  # Fluentd
    _TIME + rb" \| " + _LEVEL + rb" *\| [^|]{1,120}? - ",  # loguru
    _TIME + rb" [\w.-]{1,80} " + _UNIT,  # rsyslog
    _TIME + rb" app\[[\w.]+\](?:: | \w+ \[\w+\] ?)",  # Heroku, Fly
    _TIME + rb" [\w.-]+/[\w./\[\]$-]+ ",  # aws logs tail
    rb"(?:- )?" + _TIME + rb"(?: ~ | |\t|$)",  # kubectl --timestamps, docker logs -t, GitHub Actions
    # Loki: its labels behind the time, as logcli prints them, and as JSON in a column of their own
    rb"\{(?:[A-Za-z_]\w{0,80}=\"[^\"\n]{0,200}\"(?:, ?)?){0,20}\}(?:[ \t]|$)",
    rb"\{(?:\"[\w./-]{1,80}\": ?\"[^\"\n]{0,200}\"(?:, ?)?){1,20}\}\t",
    rb"[\w .()/-]{1,80}\t[\w .()/-]{1,80}\t(?:\xef\xbb\xbf)?" + _TIME + rb"(?: |$)",  # gh run view --log
    rb"(?:<\d{1,3}>)?(?:" + _WEEKDAY + rb" )?" + _MONTH + rb" [ \d]\d " + _CLOCK + rb"(?: \d{4})? "
    rb"(?:[\w.-]{1,80} " + _UNIT + rb")?",  # journald, syslog, ts
    # Ray, SkyPilot, vLLM with stages
    rb"\((?:[\w.:<>\[\]-]{1,80},? )?(?:(?:(?:rank|stage)=\d+,? )?pid=\d+(?:, [^)]{1,80})?|rank=\d+)\)(?: |$)",
    # vLLM: of an exception, with its file, or below a first line that names it; people leave the time out
    rb"(?:ERROR|CRITICAL) (?:\d\d-\d\d " + _CLOCK + rb" )?\[[\w.]+\.py(?::\d+)?\](?: |$)",
    _LEVEL + rb" \d\d-\d\d " + _CLOCK + rb"(?= (?:  File |    |Traceback |" + _RAISED + rb")) ?",
    rb"(?:ERROR|CRITICAL|FATAL):? +(?=" + _RAISED + rb")",
    # torch's own logger, whatever its level, of an exception
    rb"(?:\[rank\d+\]:)?[VIWEC]\d{4} " + _CLOCK + rb" \d{1,9} [\w./-]{1,200}\.py:\d+\] (?:\[\d+/\d+(?:_\d+)?\] )?"
    rb"(?=  File |    |Traceback |" + _RAISED + rb")",
    rb"\[rank\d+\]:(?: |$)",  # torch's excepthook
    rb"\[default\d+\]:",  # torchrun --tee
    rb"\[\d+,\d+\]<std(?:out|err)>: ?",  # mpirun --tag-output
    rb"\xef\xbb\xbf",
)
_PREFIX = re.compile(b"|".join(b"(?:%s)" % form for form in _KNOWN))
_TIMES = re.compile(
    rb"^\[ *\d{1,9}\.\d{3,9}\]|^\d{10}(?:\.\d{1,9}|\d{3}|\d{6}|\d{9})?\s|\b[0-9a-f]{2}[OE][ +]?$|_bk;t=\d+|^EVENTS|"
    rb" std(?:out|err) [FP] ?$|(?:"
    + _DAY
    + rb"[T ])?"
    + _CLOCK
    + rb"(?:Z| ?[+-]\d\d:?\d\d)?|"
    + _MONTH
    + rb" [ \d]\d |\b"
    + _LEVEL
    + rb"\b"
)
_FILE = b'  File "'
_TRACEBACK = b"Traceback (most recent call last):"
_FRAME = re.compile(rb'  File "[^"]{1,400}", (?:line \d+|in \w)')
_STAMP = re.compile(rb"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[\] ]")
_MOST_STAMPED = 32  # lines of a block whose prefix is looked at for its stamp alone
# SGLang indents no line with a stamp; whoever pastes a log does.
_INDENTED = re.compile(rb"([ \t]{1,40})\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")
_WORD = re.compile(rb"[0-9a-f]{6,}|\d+|[A-Za-z]+|\s+|.", re.DOTALL)
_MOST_LEARNT = 16
_LONGEST = 200
_MOST_PREFIXES = 8  # one behind another
_MOST_SHAPES = 256
_FEWEST_COMPARED, _MOST_COMPARED, _LONGEST_COMMON = 3, 60, 80
_AT_THE_MARGIN = re.compile(rb"(?!File )[^\s\d|+]")
_UP_TO_A_GAP = re.compile(rb"(?![\[\"'{(]*\Z)(?:[^\"{=]*[\s:|>\])]|\+)")
_ONE_DIGIT = bytes.maketrans(b"123456789", b"000000000")
_NUMBERS = re.compile(rb"\d+|[0-9a-f]{6,}")


STAMP_SHAPE = b"[0000-"
"""What of SGLang's stamp is in the shape of every line that has one."""


class Before(NamedTuple):
    """What stands before all lines of one shape.

    Attributes:
        end: where they themselves begin; 0 where nothing stands before them.
        parts: of what stands there, each prefix, and who wrote the line by it; None where its numbers say that.
        stamped: whether they begin with SGLang's stamp, if its year is one of this millennium.
    """

    end: int
    parts: tuple[tuple[slice, bytes | None], ...]
    stamped: bool = False


class Prefixes:
    """The forms that are known, and those that a log has shown so far."""

    def __init__(self) -> None:
        self._learnt: dict[bytes, tuple[re.Pattern[bytes], bool]] = {}
        # By what stands before a stamp, with all digits alike.
        self._shapes: dict[bytes, Before] = {}
        # By a prefix whose numbers tell writers apart.
        self._writers: dict[bytes, bytes] = {}

    def learn(self, lines: Iterable[bytes]) -> None:
        """Learn the form of what stands before frames of tracebacks, or SGLang's stamps, where two have the same."""
        forms: dict[bytes, list[bytes]] = {}
        begins: set[bytes] = set()
        stamped = 0
        for line in lines:
            if line[:1] in b" \t" and (indented := _INDENTED.match(line)):
                forms.setdefault(re.escape(indented[1]), []).append(b"")
            elif b": [20" in line[:_LONGEST] and (indented := _INDENTED.match(line, self.split(line)[0])):
                # Behind a known prefix, of which whoever writes it leaves a space.
                forms.setdefault(re.escape(indented[1]), []).append(b"")
            frame = _FRAME.search(line, 0, _LONGEST + 500) if _FILE in line else None
            if frame is None and (at := line.find(_TRACEBACK, 0, _LONGEST)) > 0 and line[:2] != b"[2":
                begins.add(_form(line[self.split(line)[0] : at]))
            if frame is None and stamped < _MOST_STAMPED and (at := line.find(b"[20", 0, _LONGEST)) > 0:
                stamped += 1
                frame = _STAMP.match(line, at)
            if frame is None or not frame.start() or frame.start() > _LONGEST:
                continue
            # Behind a quote it is a string, in an object or a pair, which is read as such; so is a column of a table.
            if any(mark in line[: frame.start()] for mark in (b'"', b"'", b"\r", b"EVENTS\t")):
                continue
            begin = line[self.split(line)[0] : frame.start()]
            # Spaces alone are an indentation, and bars and spaces are an exception group's.
            if begin.strip(b" |"):
                forms.setdefault(_form(begin), []).append(writer(begin))
        for form, writers in forms.items():
            # A traceback of one frame has its beginning too.
            if (len(writers) > 1 or not writers[0] or form in begins) and len(self._learnt) < _MOST_LEARNT:
                # Numbers that differ from frame to frame count lines; those that stay tell writers apart.
                changes = sum(one != other for one, other in pairwise(writers))
                self._learnt[form] = (re.compile(form), 2 * changes < len(writers))

    @property
    def learnt(self) -> int:
        """Return how many forms of its own a log has shown."""
        return len(self._learnt)

    def learn_what_all_have(self, lines: list[bytes]) -> None:
        """Learn what all of a log's first lines begin with, where they have little else in common."""
        some = [line for line in lines if line.strip()][:_MOST_COMPARED]
        some = [rest for line in some if (rest := line[self.split(line)[0] :])]
        if len(some) < _FEWEST_COMPARED:
            return
        shapes = [line.translate(_ONE_DIGIT) for line in some]
        first, last = min(shapes), max(shapes)
        size = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
        size = min(size, _LONGEST_COMMON, *(at for line in some if (at := line.find(b"[2")) >= 0))
        # What a frame is indented by is the traceback's own.
        size = min(size, *(at.start() for line in some if _FILE in line and (at := _FRAME.search(line))), size)
        common = _UP_TO_A_GAP.match(some[0][:size])
        # Notes beside a log begin with "#"; where a whole log does, its stamps or frames say so.
        if common is None or (b"#" in common[0] and not common[0].strip(b"# ")):
            return
        rests = [line[common.end() :] for line in some]
        words = {rest.split(None, 1)[0].translate(None, DIGITS) for rest in rests if rest.strip()}
        # Lines that say the same again and again have no prefix; a space is one only where it is an indentation of all.
        several = len(words) >= max(_FEWEST_COMPARED, len(some) // 4)
        if several and (common[0].strip() or any(map(_AT_THE_MARGIN.match, rests))):
            form = _form(common[0]) if common[0].strip() else re.escape(common[0])
            # Of numbers that count lines none tells writers apart.
            self._learnt[form] = (re.compile(form), all(line.startswith(common[0]) for line in some))

    def split(self, line: bytes) -> tuple[int, bytes]:
        """Return where the line itself begins, behind everything that stands before it, and who wrote it by that."""
        at, stream = 0, b""
        used: list[bytes] = []
        for _ in range(_MOST_PREFIXES):
            match, numbered = _PREFIX.match(line, at), True
            if match is None:
                match, numbered = self._own(line, at, used)
            if match is None or match.end() == at:
                break
            who = writer(match[0])
            stream += who if numbered else _NUMBERS.sub(b"", who)
            at = match.end()
        return at, stream

    def before_stamp(self, line: bytes, at: int) -> bytes | None:
        """Return who wrote a line, as `split` does, by what stands before its stamp; None if `split` has to be asked.

        To the known forms all digits are alike, so where one prefix ends, all end that differ from it in digits only.
        A form that was learnt may take the stamp as well.
        """
        if self._learnt or at > _LONGEST:
            return None
        shape = line[:at].translate(_ONE_DIGIT)
        if (before := self._shapes.get(shape)) is None:
            before = self.before_all(line, at) or Before(0, ())
            if len(self._shapes) < _MOST_SHAPES:
                self._shapes[shape] = before
        return self.writer_of(line, before) if before.end == at else None

    def before_all(self, line: bytes, until: int = MAX_LINE_BYTES) -> Before | None:
        """Return what stands before all lines that differ from this one in digits only; None if that is not known.

        A form that was learnt has numbers that may tell writers apart, or not.

        Args:
            line: One of them.
            until: Behind that many bytes no further prefix is looked for.
        """
        parts, end = [], 0
        while end < until and len(parts) < _MOST_PREFIXES and (match := _PREFIX.match(line, end)) and match.end() > end:
            who = writer(match[0].translate(_ONE_DIGIT))
            parts.append((slice(*match.span()), None if b"0" in who else who))
            end = match.end()
        return Before(end, tuple(parts)) if not self._learnt or (not end and not self.split(line)[0]) else None

    def writer_of(self, line: bytes, before: Before) -> bytes:
        """Return who wrote a line, as `split` does."""
        who = b""
        for part, writer_of_all in before.parts:
            if writer_of_all is None:
                prefix = line[part]
                if (known := self._writers.get(prefix)) is None:
                    known = writer(prefix)
                    if len(self._writers) < _MOST_SHAPES:
                        self._writers[prefix] = known
                who += known
            else:
                who += writer_of_all
        return who

    def _own(self, line: bytes, at: int, used: list[bytes]) -> tuple[re.Match[bytes] | None, bool]:
        """Return a learnt prefix that begins at `at`, and whether its numbers tell writers apart.

        Each form once: what is left of an indentation is the traceback's own.
        """
        for form, (own, numbered) in self._learnt.items():
            if form not in used and (match := own.match(line, at)):
                used.append(form)
                return match, numbered
        return None, True


def shapes_of(lines: list[bytes]) -> list[bytes]:
    """Return each line with all of its digits alike: what stands before a line does not depend on which they are."""
    return b"\n".join(lines).translate(_ONE_DIGIT).split(b"\n") if lines else []


def may_teach(shape: bytes) -> bool:
    """Say whether `Prefixes.learn` may learn of a line of this shape."""
    return shape[:1] in (b" ", b"\t") or b"[00" in shape or _FILE in shape or _TRACEBACK in shape


def writer(prefix: bytes) -> bytes:
    """Return what of a prefix tells one writer from another: all but the time."""
    return _TIMES.sub(b"", prefix).strip()


def _form(prefix: bytes) -> bytes:
    """Return the expression for prefixes like this one: other numbers, days and levels, the same words."""
    parts = []
    for word in _WORD.findall(prefix):
        if word.isdigit():
            parts.append(rb"\d+")
        elif re.fullmatch(rb"[0-9a-f]{6,}", word) and re.search(rb"\d", word):
            parts.append(rb"[0-9a-f]+")
        else:
            kind = next((kind for kind in (_MONTH, _WEEKDAY, _LEVEL) if re.fullmatch(kind, word)), None)
            parts.append(rb" +" if word.isspace() and len(word) > 1 else kind or re.escape(word))
    # A number of fewer digits may be padded with spaces in front; an empty line may lack the prefix's last space.
    if parts and prefix[-1:] == b" ":
        parts[-1] = rb"(?:" + re.escape(_WORD.findall(prefix)[-1]) + rb"|$)"
    if re.match(rb" *\d", prefix):
        parts = [rb" *", *(parts[1:] if prefix[:1] == b" " else parts)]
    return b"".join(parts)
