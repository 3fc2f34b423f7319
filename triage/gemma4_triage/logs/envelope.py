"""Takes a message out of the JSON object or the quoted field that a log collector put around it.

Docker, Fluent Bit, Loki, Cloud Logging, CloudWatch, Elastic, OpenTelemetry and journald name the message differently,
and loggers that write JSON add the traceback under a name of its own.
"""

from __future__ import annotations

import json
import re

_MESSAGES = (
    *("message", "msg", "log", "textPayload", "line", "body", "MESSAGE", "@message", "content", "event_message"),
    *("LogEntry", "Log_s", "text_payload", "stringValue", "raw", "_raw"),
)
_WRAPPERS = ("jsonPayload", "json_payload", "_source", "result", "attributes", "record", "fields", "log", "body")
_EXCEPTIONS = (
    *("exc_info", "exc_text", "exception", "stack_trace", "stacktrace", "stack", "traceback", "exception.stacktrace"),
    *("error.stack_trace", "error.stack"),
)
_HAVE_EXCEPTIONS = frozenset(_EXCEPTIONS)
_STREAMS = ("pod", "pod_name", "container", "container_name", "pid", "process", "_PID", "stream_name", "instance")
_HAVE_STREAMS = frozenset(_STREAMS)
# One field a line, as `gcloud logging read` prints entries.
_FIELD = re.compile(
    rb'\s*"(?:message|textPayload|log|msg|MESSAGE|@message)": ?("(?:[^"\\]|\\.)*"),?\s*|textPayload: (.*)'
)
_LOGFMT = re.compile(rb'(?:[\w.@-]{1,40}=(?:"[^"]{0,200}"|[^\s"]{0,200}) ){1,8}(?:msg|message)="((?:[^"\\]|\\.)*)".*')
_EXIT_CODE = re.compile(rb'\b(?:exitCode|exit_code)="?(-?[1-9]\d{0,2})\b')
_EXIT_CODES = ("exitCode", "exit_code")
_DEEPEST = 3


def opened(line: bytes) -> tuple[bytes, bytes] | None:
    """Return the message in an envelope, which may be of several lines, and who wrote it; None if it is no envelope.

    A record of a request (`--log-requests-format json`) is an envelope without a message: what a user wrote in it is
    no word of the server's.
    """
    if line.startswith(b"{"):
        return _of_object(line)
    if (match := _FIELD.fullmatch(line)) is not None:
        return (match[2] if match[1] is None else _decoded(match[1])), b""
    if b'="' in line[:400] and (match := _LOGFMT.fullmatch(line)) is not None:
        message = _decoded(b'"' + match[1] + b'"')
        return (message if (code := _EXIT_CODE.search(line)) is None else _ended(message, code[1])), b""
    return None


def _of_object(line: bytes) -> tuple[bytes, bytes] | None:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    if str(found.get("event", "")).startswith("request."):
        return b"", b""
    message = _message(found, _DEEPEST)
    if message is None:
        return None
    stream = ""
    if not _HAVE_STREAMS.isdisjoint(found):
        stream = "/".join(f"{found[name]}" for name in _STREAMS if isinstance(found.get(name), str | int))[:80]
    opened_message = message.encode(errors="replace")
    code = next((found[name] for name in _EXIT_CODES if isinstance(found.get(name), int)), 0)
    if code and -64 <= code <= 255:
        opened_message = _ended(opened_message, b"%d" % code)
    return opened_message, stream.encode(errors="replace")


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


def _decoded(quoted: bytes) -> bytes:
    try:
        return json.loads(quoted).encode(errors="replace")
    except ValueError:
        return quoted
