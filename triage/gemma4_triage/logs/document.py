"""A whole log inside one document: JSON of any shape, a quoted string, or a table with a head, to the log's own lines.

Loki, Elasticsearch, Datadog, CloudWatch and Cloud Logging answer and export so, and whoever saves an issue or an
answer of an API does. A file of one object a line is none: its lines are opened one by one (envelope.py).
"""

from __future__ import annotations

import ast
import csv
import io
import json
import re
from collections.abc import Iterable, Iterator

from gemma4_triage.logs.envelope import Entry, entries, in_order, moment

MOST_BYTES = 32 << 20
"""Of a document that is unpacked: it has to be held as a whole. A longer one is read as it lies."""
_MOST_PYTHON_BYTES = 4 << 20
_LONGEST_HEAD = 1 << 16  # bytes of a first line that may be the head of a table
_JSON = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:[{\"]|\[\s*(?:[\[{\"]|$)|\[?b?')")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*("?)|[\[\]{}]', re.DOTALL)
# What somebody typed to get the document.
_TYPED = re.compile(rb"(?:[\w.@:~/() -]{0,100}[$#%>] ?\w[^\n]{0,4000}\n){1,3}(?=[{\[\"])")
_CLOSES = {"{": "}", "[": "]"}
_NAME = re.compile(r"[\w.@/ ()-]{1,60}")
_MESSAGE_COLUMNS = (
    *("message", "@message", "msg", "_raw", "raw", "log", "line", "content", "text", "body", "textpayload", "logentry"),
    *("log_s", "event_message", "_source.message", "jsonpayload.message", "log message"),
)
_TIME_COLUMNS = ("timestamp", "@timestamp", "time", "_time", "date", "datetime", "ts", "timestamp_ns")


def unpacked(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the chunks as they come, or the log in the document that they are together."""
    rest = iter(chunks)
    held: list[bytes]
    held, size, known = [], 0, False
    head = b""
    for chunk in rest:
        held.append(chunk)
        size += len(chunk)
        if size > MOST_BYTES:
            break
        if not known:
            head = b"".join(held)
            held = [head]
            # A line more than a command's shows whether a document follows it.
            if head.count(b"\n") < 5 and len(head) <= _LONGEST_HEAD and not _is_plain(head):
                continue
            known = True
            head = _TYPED.sub(b"", head, count=1) if _TYPED.match(head) else head
            if not (_columns(head) or (_JSON.match(head) and not _is_one_of_many(head))):
                break
    else:
        text = b"".join(held)
        if text:
            yield _log_in(text) or text
        return
    yield from held
    yield from rest


def _is_plain(head: bytes) -> bool:
    """Say whether the first line is one of a log, behind which no document begins."""
    return b"\n" in head and head[:2] == b"[2"


def _is_one_of_many(head: bytes) -> bool:
    """Say whether the first line is a whole document, and others follow."""
    line, newline, more = head.strip().partition(b"\n")
    return bool(newline and more.strip()) and _parsed(line.decode(errors="replace")) is not None


def _log_in(text: bytes) -> bytes | None:
    """Return the lines of the log that a document holds; None where it is no document, or holds none."""
    found: list[Entry] = []
    if typed := _TYPED.match(text):
        text = text[typed.end() :]
    if columns := _columns(text):
        found = _of_table(text.decode(errors="replace"), *columns)
    elif _JSON.match(text) and not _is_one_of_many(text):
        whole = text.decode(errors="replace").removeprefix("\ufeff").strip()
        document = _parsed(whole)
        if document is None:
            document = _mended(whole)
        found = entries(document) if document is not None else []
    if not found:
        return None
    found = in_order(found)
    several = len({entry.writer for entry in found}) > 1
    lines = []
    for entry in found:
        for line in entry.text.removesuffix("\n").split("\n"):
            lines.append(f"{entry.writer} | {line}" if several and entry.writer else line)
    return ("\n".join(lines) + "\n").encode(errors="replace")


def _parsed(text: str) -> object | None:
    try:
        return json.loads(text, strict=False)
    except (ValueError, RecursionError):
        pass
    if "'" in text[:4] and len(text) <= _MOST_PYTHON_BYTES:
        # As Python prints bytes, lists and objects.
        try:
            found = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return None
        return found.decode(errors="replace") if isinstance(found, bytes) else found
    return None


def _mended(text: str) -> object | None:
    """Return a JSON document whose end is missing, as far as it goes; None if it is no JSON before that."""
    stack: list[str] = []
    whole = 0
    open_string = False
    for token in _TOKEN.finditer(text):
        if token[0][0] == '"':
            open_string = not token[1]
        elif token[0] in _CLOSES:
            stack.append(_CLOSES[token[0]])
        elif not stack or stack.pop() != token[0]:
            return None
        else:
            whole = token.end()
            at_whole = "".join(reversed(stack))
    if not stack:
        return None
    closed = "".join(reversed(stack))
    tries = [(text.rstrip("\\") + '"' if open_string else text.rstrip(", \n")) + closed]
    if whole:
        tries.append(text[:whole] + at_whole)
    return next((found for one in tries if (found := _parsed(one)) is not None), None)


def _columns(text: bytes) -> tuple[str, int, int | None] | None:
    """Return the delimiter, the message's column and the time's, if the first line is the head of a table."""
    head = text[:_LONGEST_HEAD].removeprefix(b"\xef\xbb\xbf").partition(b"\n")[0].rstrip(b"\r").decode(errors="replace")
    for delimiter in "\t,;":
        if delimiter not in head:
            continue
        names = [name.strip().strip('"') for name in head.split(delimiter)]
        low = [name.lower() for name in names]
        if all(map(_NAME.fullmatch, names)) and (found := [name for name in _MESSAGE_COLUMNS if name in low]):
            time = next((low.index(name) for name in _TIME_COLUMNS if name in low), None)
            return delimiter, low.index(found[0]), time
    return None


def _of_table(text: str, delimiter: str, message: int, time: int | None) -> list[Entry]:
    found = []
    rows = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), delimiter=delimiter)
    try:
        next(rows)
        for row in rows:
            if len(row) > message:
                at = moment(row[time]) if time is not None and len(row) > time else None
                found.append(Entry(at, "", row[message].replace("\r\n", "\n")))
    except csv.Error:
        return []
    return found
