"""Takes a message out of the JSON object or the quoted field that a log collector put around it.

Docker, Fluent Bit, Loki, Cloud Logging, CloudWatch, Elastic, OpenTelemetry and journald name the message differently,
and loggers that write JSON add the traceback under a name of its own. One object may hold many lines, or a whole log.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from gemma4_triage.logs.pasted import is_an_answer, said_of

_MESSAGES = (
    *("message", "msg", "log", "textPayload", "line", "body", "MESSAGE", "@message", "content", "event_message"),
    *("LogEntry", "Log_s", "text_payload", "stringValue", "raw", "_raw", "event", "text"),
)
_WRAPPERS = ("jsonPayload", "json_payload", "_source", "result", "attributes", "record", "fields", "log", "body")
_EXCEPTIONS = (
    *("exc_info", "exc_text", "exception", "stack_trace", "stacktrace", "stack", "traceback", "exception.stacktrace"),
    *("error.stack_trace", "error.stack"),
)
_HAVE_EXCEPTIONS = frozenset(_EXCEPTIONS)
_STREAMS = ("pod", "pod_name", "container", "container_name", "pid", "process", "_PID", "stream_name", "instance")
_LABELS = ("stream", "resource", "labels")  # of all lines of a list beside them
_HAVE_STREAMS = frozenset(_STREAMS)
_TIMES = ("timestamp", "@timestamp", "time", "_time", "ts", "timeUnixNano", "date")
# What a user sent or was sent is no word of the server's, whatever it tells of.
_OF_USERS = frozenset({"choices", "meta_info", "sampling_params", "prompt_tokens", "max_tokens", "max_new_tokens"})
_LISTS = frozenset({"logs", "lines", "log", "messages", "entries", "output", "stdout", "stderr"})
# Of a string whose name says nothing: a stamp, a frame or a traceback makes it a log, or that it has lines.
_LIKE_A_LOG = re.compile(r'\n|\[20\d\d-\d\d-\d\d |Traceback \(most|  File "|\b(?:Error|Exception): ')
# One field a line, as `gcloud logging read` prints entries.
_FIELD = re.compile(
    rb'\s*"(?:message|textPayload|log|msg|MESSAGE|@message)": ?("(?:[^"\\]|\\.)*"),?\s*|textPayload: (.*)'
)
_QUOTED = rb""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
_LOGFMT = re.compile(
    rb"""(?:[\w.@-]{1,40}=(?:"[^"]{0,200}"|'[^']{0,200}'|[^\s"']{0,200}) ){0,8}(?:msg|message|event|log)="""
    rb"(?:(" + _QUOTED + rb")(?: .*)?|(?<= msg=)([^\s\"']+)(?: [\w.@-]{1,40}=.*)?)"
)
# As Fluent Bit prints what it would send: [0] tag: [[time, {}], {"log"=>"…"}].
_ARROW = re.compile(rb'\[\d{1,9}\] \S{1,200}: \[.{0,2000}?"(?:log|message|msg|MESSAGE|line)"=>("(?:[^"\\]|\\.)*").*')
# As the command line of AWS prints events as text.
_EVENTS = re.compile(rb"EVENTS\t(?:\d+\t)?(.*?)(?:\t\d{13})?")
# As Python shows the bytes of a line that a program has read from another's output.
_BYTES = re.compile(rb"(b(?:" + _QUOTED + rb")),?")
_EXIT_CODE = re.compile(rb'\b(?:exitCode|exit_code)="?(-?[1-9]\d{0,2})\b')
_EXIT_CODES = ("exitCode", "exit_code")
_DEEPEST = 3
_DEEPEST_ENTRY = 12
_ISO = re.compile(r"(\d{4}[-/]\d\d[-/]\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d+))?")
_WORDS_OF_A_DAY = re.compile(r"(\w{3}) (\d{1,2}), (\d{4}) @ (\d\d:\d\d:\d\d)(?:\.(\d+))?")
_MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
_STAMP = re.compile(r"\[(20\d\d-\d\d-\d\d \d\d:\d\d:\d\d)")


class Entry(NamedTuple):
    """A message out of a document.

    Attributes:
        at: when it was written, by what stands beside it, to compare with others of its document; None where not said.
        writer: which of several wrote it.
        text: of one line or more.
    """

    at: tuple | None
    writer: str
    text: str


def opened(line: bytes) -> tuple[bytes, bytes] | None:
    """Return the message in an envelope, which may be of several lines, and who wrote it; None if it is no envelope.

    A record of a request (`--log-requests-format json`), or an answer to one, is an envelope without a message: what
    a user wrote in it, or a model, is no word of the server's. Of an answer a line of our own says what it shows.
    """
    if line.startswith(b"{"):
        return _of_object(line)
    if line[:2] in (b"[{", b"[[", b'["', b'"['):
        found = in_order(entries(_loaded(line)))
        return (_joined(found).encode(errors="replace"), b"") if found else None
    if line[:2] in (b"b'", b'b"') and (match := _BYTES.fullmatch(line)) is not None:
        return _of_bytes(match[1]), b""
    if b'"=>"' in line and (match := _ARROW.fullmatch(line)) is not None:
        return _decoded(match[1]), b""
    if line.startswith(b"EVENTS\t") and (match := _EVENTS.fullmatch(line)) is not None:
        return match[1], b""
    if (match := _FIELD.fullmatch(line)) is not None:
        return (match[2] if match[1] is None else _decoded(match[1])), b""
    if b"=" in line[:400] and (match := _LOGFMT.fullmatch(line)) is not None:
        message = match[2] if match[1] is None else _decoded(match[1])
        return (message if (code := _EXIT_CODE.search(line)) is None else _ended(message, code[1])), b""
    return None


def _joined(found: list[Entry]) -> str:
    return "\n".join(entry.text.removesuffix("\n") for entry in found)


def entries(document: object) -> list[Entry]:
    """Return the messages of a document, as it lists them; of a list whose times fall, from its end."""
    return list(_entries(document, _DEEPEST_ENTRY, "", named=True))


def in_order(found: list[Entry]) -> list[Entry]:
    """Return entries as they were written: by their times where each has one, else by SGLang's stamps in them."""
    if len({len(entry.at) if entry.at else 0 for entry in found}) == 1 and found[0].at:
        return sorted(found, key=lambda entry: entry.at or ())
    stamps = [match[1] for entry in found if (match := _STAMP.match(entry.text))]
    fall = sum(one > other for one, other in pairwise(stamps))
    rise = sum(one < other for one, other in pairwise(stamps))
    return found[::-1] if fall > 1 + 4 * rise and not any(entry.at for entry in found) else found


def moment(value: object) -> tuple | None:
    """Return a time to compare with others of its document; None for what is none."""
    if isinstance(value, int | float) or (isinstance(value, str) and value.replace(".", "", 1).isdecimal()):
        return (float(value) if isinstance(value, float) or "." in str(value) else int(value),)
    if not isinstance(value, str):
        return None
    if match := _ISO.match(value):
        return match[1].replace("/", "-"), match[2], float(f"0.{match[3] or 0}")
    if (match := _WORDS_OF_A_DAY.match(value)) and (month := _MONTHS.find(match[1])) >= 0:
        return f"{match[3]}-{month // 3 + 1:02d}-{int(match[2]):02d}", match[4], float(f"0.{match[5] or 0}")
    return None


def _entries(value: object, depth: int, writer: str, named: bool) -> Iterator[Entry]:
    """Yield what is in a value.

    Args:
        value: Any part of a document.
        depth: How far into it is looked.
        writer: Who wrote it, by what stands around it.
        named: Whether its place says that a string in it is of a log.
    """
    if isinstance(value, str):
        if named or _LIKE_A_LOG.search(value):
            yield Entry(None, writer, value.replace("\r\n", "\n"))
    elif isinstance(value, list) and depth:
        yield from _of_list(value, depth, writer, named)
    elif isinstance(value, dict) and depth and not _is_of_a_user(value):
        message = _message(value, _DEEPEST)
        if message is not None:
            at = _time(value, _DEEPEST)
            yield Entry(at, _writer(value) or writer, message.replace("\r\n", "\n"))
            value = {"comments": value.get("comments")}
        labels = [part for name in _LABELS if isinstance(part := value.get(name), dict)]
        writer = next(filter(None, map(_writer, labels)), writer)
        for name, part in value.items():
            yield from _entries(part, depth - 1, writer, named=name in _LISTS)


def _time(found: dict, depth: int) -> tuple | None:
    """Return when an object says that it was written, itself or in what holds its message."""
    inner = (found[name] for name in _WRAPPERS if depth and isinstance(found.get(name), dict))
    own = (at for name in _TIMES if (at := moment(found.get(name))) is not None)
    return next(own, None) or next((at for part in inner if (at := _time(part, depth - 1)) is not None), None)


def _of_list(value: list, depth: int, writer: str, named: bool) -> Iterator[Entry]:
    if len(value) in (2, 3) and isinstance(value[1], str) and not isinstance(value[0], list) and moment(value[0]):
        # Loki's pair of a time and a line.
        yield Entry(moment(value[0]), writer, value[1])
        return
    texts = [part for part in value if isinstance(part, str)]
    named = named or any(map(_LIKE_A_LOG.search, texts))
    found = [entry for part in value for entry in _entries(part, depth - 1, writer, named)]
    if found and found[0].at and found[-1].at and len(found[0].at) == len(found[-1].at) and found[0].at > found[-1].at:
        found.reverse()
    yield from found


def _is_of_a_user(found: dict) -> bool:
    messages = found.get("messages")
    chat = isinstance(messages, list) and bool(messages) and isinstance(messages[0], dict) and "role" in messages[0]
    return chat or not _OF_USERS.isdisjoint(found) or str(found.get("event", "")).startswith("request.")


def _writer(found: dict) -> str:
    if _HAVE_STREAMS.isdisjoint(found):
        return ""
    return "/".join(f"{found[name]}" for name in _STREAMS if isinstance(found.get(name), str | int))[:80]


def _loaded(line: bytes) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _of_object(line: bytes) -> tuple[bytes, bytes] | None:
    found = _loaded(line)
    if not isinstance(found, dict):
        return None
    if is_an_answer(found) or _is_of_a_user(found):
        return said_of(found), b""
    if (said := _refusal(found)) is not None:
        return said.encode(errors="replace"), b""
    message = _message(found, _DEEPEST)
    if message is None:
        listed = in_order(entries(found))
        if not listed:
            return None
        message = _joined(listed)
    opened_message = message.encode(errors="replace")
    code = next((found[name] for name in _EXIT_CODES if isinstance(found.get(name), int)), 0)
    if code and -64 <= code <= 255:
        opened_message = _ended(opened_message, b"%d" % code)
    return opened_message, _writer(found).encode(errors="replace")


_OF_A_REFUSAL = frozenset({"error", "object", "message", "type", "param", "code", "request_id"})


def _refusal(found: dict) -> str | None:
    """Return what an answer with a status of 400 says, as clients print it; None for any other object."""
    inner = found.get("error", found if found.get("object") == "error" else None)
    if not isinstance(inner, dict) or not {*found, *inner} <= _OF_A_REFUSAL:
        return None
    text, code = inner.get("message"), inner.get("code")
    named = str(inner.get("type", "BadRequest")).lower().startswith(("badrequest", "invalid_request", "validation"))
    if not isinstance(text, str) or (code not in (None, 400, "400") or not named):
        return None
    return f"Error code: 400 - {text}"


def _ended(message: bytes, code: bytes) -> bytes:
    # The runtimes of containers have the code in a field of its own, and it is what says how the process died.
    return message if code in message else message + b" (exited with code " + code + b")"


def _message(found: dict, depth: int) -> str | None:
    text = next((found[name] for name in _MESSAGES if isinstance(found.get(name), str)), None)
    if text is None:
        inner = (found[name] for name in _WRAPPERS if depth and isinstance(found.get(name), dict))
        text = next((message for part in inner if (message := _message(part, depth - 1)) is not None), None)
    stack = None
    if not _HAVE_EXCEPTIONS.isdisjoint(found):
        stack = next((found[name] for name in _EXCEPTIONS if isinstance(found.get(name), str)), None)
    if stack and (text is None or stack not in text):
        text = stack if text is None else f"{text}\n{stack}"
    return text


def _of_bytes(shown: bytes) -> bytes:
    try:
        return ast.literal_eval(shown.decode(errors="replace"))
    except (ValueError, SyntaxError):
        return shown[2:-1]


def _decoded(quoted: bytes) -> bytes:
    for read in (json.loads, ast.literal_eval):
        try:
            return read(quoted.decode(errors="replace")).encode(errors="replace")
        except (ValueError, SyntaxError):
            continue
    return quoted[1:-1]
