"""Lines as SGLang wrote them, out of lines as people paste them.

Colours and cursor movements, progress bars that end in a carriage return, what containers and log collectors put
before a line, JSON around it, and what web pages and editors make of it are taken off. A block that has none of it is
handed on as it came.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

from gemma4_triage.logs import values_asked
from gemma4_triage.logs.envelope import opened
from gemma4_triage.logs.lines import MAX_LINE_BYTES, Block
from gemma4_triage.logs.prefixes import STAMP_SHAPE, Before, Prefixes, may_teach, shapes_of
from gemma4_triage.logs.prompts_over_lines import without_prompts, without_rest
from gemma4_triage.logs.tracebacks import CHAIN, TRACEBACK

# Escape sequences; colours also where a web page has swallowed the escape itself, or shows it as two characters.
_ESCAPES = re.compile(
    rb"\x1b[\]_][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)|\x1b[\[(][0-9;?]*[ -/]*[@-~]|\x1b[=>78MNOPc]"
    rb"|(?:\^\[|\xe2\x90\x9b|\\x1b|\\u001b|\\033)?\[\d{0,3}(?:;\d{1,3}){0,4}m|[\x00\x08]"
)
_CONTROLS = (b"\x1b", b"\x00", b"\x08")
# The end of a tqdm bar that something else is glued to: "… 2/2 [00:01<00:00,  1.2s/it][2026-01-01 00:00:00] …".
_BAR = re.compile(rb"(?:it/s|s/it|[kMG]?B/s|\?it/s)(?:, [^\]\n]{0,80})?\] *(?=[^\s\]])")
_IS_BAR = re.compile(rb"\d%\||(?:it/s|s/it|B/s)(?:, [^\]]{0,80})?\]\s*$|\x1b\[A")
_STAMP = re.compile(rb"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?((?: [A-Z_]+\d+)*)\](?: |$)")
# What writes its own stamp before SGLang's, and a level perhaps; before a line without one the same stands alone.
_TWICE = re.compile(
    rb"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d+)?\] (?:\[?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\]?:? (?:- )?)?"
)
_LEVEL = re.compile(rb"\[[^\]]{19,30}\] \[?(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
_AT_ONCE = re.compile(_TWICE.pattern + rb"(?=\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)")
_STAMPED_FRAME = re.compile(rb'^\[\d{4}-\d\d-\d\d \d\d:[^\]\n]{5,90}\]   File "', re.MULTILINE)
# What a user wrote in a request is no word of the server's.
_REQUEST = re.compile(rb"\b(?:GenerateReqInput|EmbeddingReqInput|ChatCompletionRequest|CompletionRequest)\(")
_REQUESTS = (b"ReqInput(", b"CompletionRequest(")
_BEFORE_MARK = len("Embedding")  # the longest that stands before one of these in a name
# The server's process as journald, syslog or Ray tell it: of docker's or a shell's own nothing is known.
_PID = re.compile(
    rb"(?:^|\s)(?:sglang|python|gemma4-triage)[\w.@-]{0,40}\[(\d{1,10})\]: $|"
    rb"^\((?:[\w.:<>\[\]-]{1,80} )?pid=(\d{1,10})\b"
)
_JOURNAL_PID = re.compile(rb'"_PID" ?: ?"(\d{1,10})"')
_JOURNAL_NAME = re.compile(rb'"(?:SYSLOG_IDENTIFIER|_COMM)" ?: ?"(?:sglang|python|gemma4-triage)')
# Of a web page: what a browser's source view has, and what it shows spaces and quotes with.
_ENTITIES = (b"&quot;", b"&lt;", b"&gt;", b"&amp;", b"&#")
_TAGS = re.compile(rb"</?(?:span|pre|code|p|div|br|li|td|tr|samp|html|body|font)\b[^<>\n]{0,300}>")
_TAG_MARKS = (b"</span>", b"<br", b"</div>", b"</p>", b"</pre>", b"</code>", b"</td>", b"</li>", b"<pre")
_TYPESET = {
    "\u00a0".encode(): b" ",
    "\u200b".encode(): b"",
    "\ufeff".encode(): b"",
    "\u201c".encode(): b'"',
    "\u201d".encode(): b'"',
    "\u2019".encode(): b"'",
}
_BOXES = ("\u2502".encode(), "\u2503".encode())
_MOST_PIDS = 64
_FIELDS = (b'": "', b'":"', b'"=>"', b'["', b'"[')
_DEEPEST = 4
_MOST_HELD = 64
_MOST_SHAPES = 2000


class Unwrapper:
    """Feed it blocks in order; the forms of prefixes that it has learnt hold for all that follows."""

    def __init__(self) -> None:
        self._prefixes, self._inner = Prefixes(), Prefixes()
        self._held: dict[bytes, bytes] = {}
        self._stamped = _StampedTracebacks()
        self._last_number = 0
        self._first, self._twice = True, False
        # By lines without their digits, as long as no further form is learnt: what stands before each; None where a
        # line has to be looked at itself.
        self._before: dict[bytes, Before | None] = {}
        self._learnt = 0
        self.pids: dict[int, None] = {}
        """Of the server, as what stands before its lines has them."""

    def block(self, block: Block) -> Block | None:
        """Return the block as it came if nothing stands around its lines, else one with other lines; None of none."""
        self._last_number = block.numbers[-1]
        # First what is longest, and of no interest: all that follows looks at the rest alone.
        requests = any(mark in block.text for mark in _REQUESTS)
        text, still_open = without_prompts(block.text, block.numbers) if requests else (block.text, [])
        text = _without_requests(text) if requests else text
        plain = lines = text.split(b"\n") if requests else block.lines
        escaped = any(mark in text for mark in _CONTROLS)
        if escaped or b"[0m" in text:
            lines = [_ESCAPES.sub(b"", line) for line in lines]
        if b"&" in text or not text.isascii() or (b"<" in text and any(mark in text for mark in _TAG_MARKS)):
            lines = [_as_typed(line) for line in lines]
        redrawn = False
        if b"\r" in text:
            lines = [line.rstrip(b"\r") for line in lines]
            redrawn = any(b"\r" in line for line in lines)
        if requests and lines is not plain:
            lines = [_without_request(line) for line in lines]
        if b"] [" in text:
            lines = self._stamped_once(lines)
        # A stamp of SGLang's own is what nearly all lines begin with, and such a line needs no look.
        day = lines[len(lines) // 2][:12]
        odd: Sequence[int] = range(len(lines))
        if not _is_odd(day):
            odd = [at for at, line in enumerate(lines) if not line.startswith(day)]
        odd = [at for at in odd if lines[at][:2] != b"[2" or _is_odd(lines[at])]
        if self._first:
            self._first = False
            if (some := next(filter(None, lines), b""))[:1] != b"{" and opened(some) is None:
                self._prefixes.learn_what_all_have(lines)
        shapes = shapes_of([lines[at] for at in odd])
        teach = {shape for shape in {*shapes} if may_teach(shape)}
        if teach:
            self._prefixes.learn(lines[at] for at, shape in zip(odd, shapes, strict=True) if shape in teach)
        if redrawn or _may_have_a_bar(text):
            odd, shapes = list(range(len(lines))), shapes_of(lines)
        changed = self._around(lines, odd, shapes)
        if changed:
            self._bare_within(changed)
        if not self._twice and self._stamped.concerns(text):
            for at, line in enumerate(lines):
                changed[at] = [self._stamped.line(*piece) for piece in changed.get(at, [(b"", line)])]
        bare = block if lines is block.lines else block.with_lines(lines, block.numbers, block.streams)
        bare = _replaced(block, lines, changed) if changed else bare
        if still_open and bare is not None and without_rest(bare_lines := [*bare.lines], bare.numbers, still_open):
            return bare.with_lines(bare_lines, bare.numbers, bare.streams)
        return bare

    def _around(
        self, lines: list[bytes], odd: Sequence[int], shapes: list[bytes]
    ) -> dict[int, list[tuple[bytes, bytes]]]:
        """Return, by line, the (stream, line) of all that are in one around which something stands."""
        if len(self._before) > _MOST_SHAPES or self._prefixes.learnt != self._learnt:
            self._before.clear()
            self._learnt = self._prefixes.learnt
        known = self._before
        distinct = dict(zip(shapes, odd, strict=True))
        for shape, at in distinct.items():
            if shape not in known:
                known[shape] = self._before_alike(lines[at], shape)
        changed: dict[int, list[tuple[bytes, bytes]]] = {}
        if all((before := known[shape]) is not None and not before.end for shape in distinct):
            return changed
        for at, shape in zip(odd, shapes, strict=True):
            before = known[shape]
            if before is not None and not before.end:
                continue
            line = lines[at]
            if before is not None and not self._held and (not before.stamped or line.startswith(b"[2", before.end)):
                changed[at] = [(self._prefixes.writer_of(line, before), line[before.end :])]
                continue
            if (piece := self._behind_a_prefix(lines[at])) is not None:
                changed[at] = [piece]
                continue
            pieces = list(self._pieces(lines[at]))
            if len(pieces) != 1 or pieces[0][0] or pieces[0][1] is not lines[at]:
                changed[at] = pieces
        return changed

    def _before_alike(self, line: bytes, shape: bytes) -> Before | None:
        """Return what stands before all lines that differ from this one in digits only; None if they may differ in it.

        They may where a number is read: SGLang's stamp, the number of a process, what is in an envelope.
        """
        if b"\r" in line or _may_have_a_bar(line):
            return None
        if STAMP_SHAPE in shape:
            at = line.find(b"[2")
            if at != shape.find(b"[0") or _PID.search(line[:at]) or self._behind_a_prefix(line) is None:
                return None
            before = self._prefixes.before_all(line, at)
            return before._replace(stamped=True) if before is not None and before.end == at else None
        before = self._prefixes.before_all(line)
        if before is None:
            return None
        prefix, rest = line[: before.end], line[before.end :]
        opens = rest[:1] in (b"{", b'"') or (rest[:1] == b"[" and _may_be_opened(rest)) or opened(rest) is not None
        return None if opens or prefix.endswith((b"out P ", b"err P ")) or _PID.search(prefix) else before

    def _stamped_once(self, lines: list[bytes]) -> list[bytes]:
        """Return lines without the stamp of whatever puts one before SGLang's, where that is what it does."""
        if not self._twice:
            stamped = [line for line in lines if line[:2] == b"[2" and _TWICE.match(line)]
            twice = sum(_AT_ONCE.match(line) is not None for line in stamped)
            every_line = len(stamped) == sum(map(bool, lines))
            levels = sum(_LEVEL.match(line) is not None for line in stamped)
            # SGLang writes no level, and not two stamps.
            self._twice = 3 * twice > len(stamped) or (every_line and (twice > 0 or levels == len(stamped) > 0))
        return [_TWICE.sub(b"", line, count=1) for line in lines] if self._twice else lines

    def _bare_within(self, changed: dict[int, list[tuple[bytes, bytes]]]) -> None:
        """Take off what stands before the lines within an envelope, which is learnt of them as of any other."""
        inner = [line for pieces in changed.values() for _, line in pieces if line[:2] != b"[2"]
        shapes = shapes_of(inner)
        teach = {shape for shape in {*shapes} if may_teach(shape)}
        if teach:
            self._inner.learn(line for line, shape in zip(inner, shapes, strict=True) if shape in teach)
        if self._inner.learnt:
            for at, pieces in changed.items():
                ends = [self._inner.split(line) for _, line in pieces]
                changed[at] = [
                    (stream + who, line[end:]) for (stream, line), (end, who) in zip(pieces, ends, strict=True)
                ]

    def rest(self) -> Iterator[Block]:
        """Yield what was begun and never ended: parts of lines that a container runtime had cut."""
        for stream, line in self._held.items():
            numbers = range(self._last_number, self._last_number + 1)
            yield Block(numbers, line, whole=False, streams=[stream])

    def _behind_a_prefix(self, line: bytes) -> tuple[bytes, bytes] | None:
        """(stream, line) of what most lines are behind a prefix, one with a stamp; None where `_pieces` has to look."""
        at = line.find(b"[2")
        if (
            at <= 0
            or self._held
            or line[at - 3 : at] == b" P "
            or b"\r" in line
            or b'": "' in line
            or _may_have_a_bar(line)
            or not _STAMP.match(line, at)
            or (stream := self._prefixes.before_stamp(line, at)) is None
        ):
            return None
        if b"[" in line[:at] or b"pid=" in line[:at]:
            self._note(_PID.search(line[:at]))
        return stream, line[at:]

    def _pieces(self, line: bytes, depth: int = _DEEPEST, stream: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """(stream, line) of all lines in one."""
        if line[-1:] == b"\r":
            line = line.rstrip(b"\r")
        if b"\r" in line:
            yield from self._redrawn(line, depth, stream)
            return
        if _is_odd(line):
            end, who = self._prefixes.split(line)
            if end:
                prefix, line = line[:end], line[end:]
                stream += who
                self._note(_PID.search(prefix))
                # A container's two channels are one log, but each cuts its own lines.
                channel = stream + (b"/err" if b" stderr " in prefix else b"")
                if prefix.endswith((b"out P ", b"err P ")):
                    self._hold(channel, line)
                    return
                line = self._held.pop(channel, b"") + line if self._held else line
            found = opened(line) if depth and _may_be_opened(line) else None
            if found is not None:
                message, who = found
                if b'"_PID"' in line and _JOURNAL_NAME.search(line):
                    self._note(_JOURNAL_PID.search(line))
                for part in message.rstrip(b"\n").split(b"\n"):
                    yield from self._pieces(_ESCAPES.sub(b"", part), depth - 1, stream + who)
                return
        if (bar := _last_bar(line)) > 0:
            line = line[bar:]
        yield stream, _without_request(line) if depth < _DEEPEST else line

    def _note(self, found: re.Match[bytes] | None) -> None:
        if found is not None and len(self.pids) < _MOST_PIDS:
            self.pids[int(next(filter(None, found.groups())))] = None

    def _redrawn(self, line: bytes, depth: int, stream: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield a line that was written over again and again, as progress bars are."""
        # The prefix stands before the first state only.
        end, who = self._prefixes.split(line) if _is_odd(line) else (0, b"")
        stream += who
        states = [state for state in line[end:].split(b"\r") if state]
        for state in states:
            if state is states[-1] or not _IS_BAR.search(state) or _last_bar(state):
                yield from self._pieces(state, depth and depth - 1, stream)

    def _hold(self, stream: bytes, part: bytes) -> None:
        if stream in self._held or len(self._held) < _MOST_HELD:
            self._held[stream] = (self._held.get(stream, b"") + part)[: MAX_LINE_BYTES + 1]


class _StampedTracebacks:
    """Takes SGLang's stamp off the lines of tracebacks, where something has put it before every one of them."""

    def __init__(self) -> None:
        self._after: dict[bytes, bool] = {}

    def concerns(self, text: bytes) -> bool:
        """Say whether a block holds such a traceback, or one is open."""
        return bool(self._after) or (b"]   File " in text and _STAMPED_FRAME.search(text) is not None)

    def line(self, stream: bytes, line: bytes) -> tuple[bytes, bytes]:
        """(stream, line): a line of a traceback without its stamp, any other as it is."""
        match = _STAMP.match(line)
        if match is None:
            return stream, line
        stream += match[1]
        body = line[match.end() :]
        after = self._after.get(stream)
        if TRACEBACK in body:
            if after is not None or len(self._after) < _MOST_HELD:
                self._after[stream] = False
            return stream, body if after and body.startswith(TRACEBACK) else line
        if after is None:
            return stream, line
        if not after:
            # The first line without an indentation is the exception.
            self._after[stream] = bool(body) and not body[:1].isspace()
            return stream, body
        if not body or body.startswith(CHAIN):
            return stream, body
        del self._after[stream]
        return stream, line


def _replaced(block: Block, lines: list[bytes], changed: dict[int, list[tuple[bytes, bytes]]]) -> Block | None:
    numbers: list[int] = []
    streams: list[bytes] = []
    bare: list[bytes] = []
    for at, (number, line) in enumerate(zip(block.numbers, lines, strict=True)):
        pieces = changed.get(at)
        if pieces is None:
            pieces = [(b"", line)]
        for stream, piece in pieces:
            numbers.append(number)
            streams.append(stream)
            bare.append(piece)
    return block.with_lines(bare, numbers, streams) if bare else None


def _as_typed(line: bytes) -> bytes:
    """Return a line without what web pages, editors and terminals draw around or make of its letters."""
    if b"<" in line and any(mark in line for mark in _TAG_MARKS):
        line = _TAGS.sub(b"", line)
    if b"&" in line and any(mark in line for mark in _ENTITIES):
        # One line stays one, also where a page shows the end of another in it.
        shown = html.unescape(line.decode(errors="surrogateescape")).replace("\n", " ")
        line = shown.encode(errors="surrogateescape")
    for drawn, letter in _TYPESET.items():
        if drawn in line:
            line = line.replace(drawn, letter)
    if line.startswith(_BOXES) and (ended := line.rstrip()).endswith(_BOXES):
        line = ended[:-3].rstrip()
    return line


def _may_be_opened(line: bytes) -> bool:
    return line[:1] not in b"[ " or any(mark in line for mark in _FIELDS)


def _is_odd(line: bytes) -> bool:
    """Say whether a line does not begin with a stamp of SGLang's."""
    return line[:2] != b"[2" or line[5:12:3] != b"-- "


def _may_have_a_bar(text: bytes) -> bool:
    return b"it/s" in text or b"s/it" in text or b"B/s" in text


def _last_bar(line: bytes) -> int:
    """Return where the last progress bar in a line ends; 0 if there is none."""
    end = 0
    if _may_have_a_bar(line):
        for match in _BAR.finditer(line):
            end = match.end()
    return end


def _without_requests(text: bytes) -> bytes:
    """Return lines as `_without_request` does, of which most need not be looked at one by one."""
    for mark in _REQUESTS:
        parts, done = [], 0
        at = text.find(mark)
        while at >= 0:
            end = text.find(b"\n", at)
            end = len(text) if end < 0 else end
            if match := _REQUEST.search(text, max(done, at - _BEFORE_MARK), end):
                parts.append(text[done : match.end()] + values_asked.said_of(text[match.end() : end]))
                begin = text.rfind(b"\n", 0, at) + 1
                if text[begin : begin + 1] == b"{":
                    # An object in JSON stays one, of which what stands ahead of the request is read.
                    open_ones = text.count(b"{", begin, match.end()) - text.count(b"}", begin, match.end())
                    parts.append(b'"' + b"}" * open_ones)
                done = end
            at = text.find(mark, end)
        text = b"".join([*parts, text[done:]]) if parts else text
    return text


def _without_request(line: bytes) -> bytes:
    if b"ReqInput(" not in line and b"CompletionRequest(" not in line:
        return line
    match = _REQUEST.search(line)
    return line if match is None else line[: match.end()] + values_asked.said_of(line[match.end() :])
