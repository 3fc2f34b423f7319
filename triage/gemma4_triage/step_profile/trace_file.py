"""A Chrome trace as a stream of events, in memory that does not grow with the file.

A trace is an object whose "traceEvents" holds an array of events, or that array itself. Python's own JSON decoder is
handed one value at a time, so that what it refuses and what it lets pass is the standard library's: NaN, which a
profiler may write, passes, and so do integers beyond 64 bits.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from typing import Any

from gemma4_triage.errors import TraceDamaged
from gemma4_triage.logs.source import Source

MAX_VALUE_CHARACTERS = 1 << 24
"""Of one event, or of one value beside the events; a longer one is no profiler's."""

_EVENTS = "traceEvents"
# -Infinity, \\ud83d\\ude00: what the window's end may have cut.
_LONGEST_TOKEN = 12
_SPACE = re.compile(r"[ \t\r\n]*")
# Stored beside the events and worth showing; everything else is passed over.
_HEADER = ("deviceProperties", "displayTimeUnit", "schemaVersion", "gemma4_triage")


class TraceFile:
    """One trace. Iterate over `events()` once; `header` and `size_bytes` (unpacked) are whole after that."""

    def __init__(self, source: Source) -> None:
        self.name = source.name
        self.header: dict[str, Any] = {}
        self._source = source
        self._text = _Text(source)
        self._found_events = False

    @property
    def size_bytes(self) -> int:
        return self._text.size_bytes

    def events(self) -> Iterator[Any]:
        """Yield every element of the array, whatever it is.

        Raises:
            TraceDamaged: it is no trace, is torn, or holds an overlong value. A torn trace is not half of the step:
                events are not in order of time, so any part of it may be missing.
            UsageMistake: it cannot be opened.
        """
        first = self._text.peek()
        if first == "[":
            self._found_events = True
            yield from self._array()
        elif first == "{":
            yield from self._object()
        else:
            raise self._no_trace("it begins with neither { nor [") if first else self._torn()
        self._end()

    def _object(self) -> Iterator[Any]:
        self._text.skip(1)
        if self._text.peek() == "}":
            self._text.skip(1)
            return
        while True:
            key = self._value()
            if not isinstance(key, str) or self._text.peek() != ":":
                raise self._no_trace("an object's key is missing") if self._text.peek() else self._torn()
            self._text.skip(1)
            if key == _EVENTS and self._text.peek() == "[":
                self._found_events = True
                yield from self._array()
            else:
                value = self._value()
                if key in _HEADER:
                    self.header[key] = value
            if self._more("}"):
                return

    def _array(self) -> Iterator[Any]:
        self._text.skip(1)
        if self._text.peek() == "]":
            self._text.skip(1)
            return
        while True:
            yield self._value()
            if self._more("]"):
                return

    def _more(self, end: str) -> bool:
        """Past a comma or the end of the container; True at its end."""
        found = self._text.peek()
        if found not in (",", end):
            raise self._torn() if not found else self._no_trace(f"{found!r} stands where , or {end} should")
        self._text.skip(1)
        return found == end

    def _value(self) -> Any:
        self._text.peek()
        try:
            return self._text.decode()
        except _Unfinished:
            raise self._torn() from None
        except _Overlong:
            raise self._no_trace(f"one value is longer than {MAX_VALUE_CHARACTERS} characters") from None
        except RecursionError:
            raise self._no_trace("it is nested too deeply") from None
        except ValueError as error:
            raise self._no_trace(str(error)) from None

    def _end(self) -> None:
        if self._text.peek():
            raise self._no_trace("text follows its end")
        if self._source.problem:
            raise self._torn()
        if not self._found_events:
            raise self._no_trace(f'it has no "{_EVENTS}"')

    def _torn(self) -> TraceDamaged:
        if not self._text.size_bytes and not self._source.problem:
            return self._no_trace("it is empty")
        why = self._source.problem or "ends in the middle of a value"
        hint = "copy it again whole; a torn trace may lack any part of a step, so nothing is made of it"
        return TraceDamaged(f"{self.name} is torn: {why}", hint)

    def _no_trace(self, why: str) -> TraceDamaged:
        if self._source.problem:
            return self._torn()
        hint = "give a Chrome trace (JSON, plain or gzip) of SGLang's /start_profile or of torch.profiler"
        return TraceDamaged(f"{self.name} is no trace of a profiler: {why}", hint)


class _Unfinished(Exception):
    """The text ended inside a value."""


class _Overlong(Exception):
    """A value did not end within the limit."""


def _may_go_on(error: json.JSONDecodeError, length: int) -> bool:
    """Say whether more text could mend it: what is wrong lies at the window's end, or is a string without its end."""
    return error.msg.startswith("Unterminated string") or error.pos >= length - _LONGEST_TOKEN


class _Text:
    """A window on decompressed text: what has been read and not been used."""

    def __init__(self, source: Source) -> None:
        self.size_bytes = 0
        self._chunks = source.chunks()
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._scan = json.JSONDecoder(strict=False).raw_decode
        self._window, self._at = "", 0

    def peek(self) -> str:
        """Return the next character that is no space, without taking it; "" at the end."""
        while True:
            match = _SPACE.match(self._window, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._window):
                return self._window[self._at]
            if not self._read():
                return ""

    def skip(self, characters: int) -> None:
        self._at += characters

    def decode(self) -> Any:
        """Return the value that begins here. Raises _Unfinished, _Overlong, RecursionError, ValueError."""
        while True:
            try:
                value, end = self._scan(self._window, self._at)
            except json.JSONDecodeError as error:
                if not _may_go_on(error, len(self._window)):
                    raise
                self._read_more()
                continue
            # A number at the window's end may go on: 100, 100. and 100e are 100 to the decoder.
            rest = self._window[end : end + 3]
            if isinstance(value, int | float) and not rest.strip(".eE+-"):
                if self._read():
                    continue
                if rest:
                    raise _Unfinished
            self._at = end
            return value

    def _read_more(self) -> None:
        if len(self._window) - self._at > MAX_VALUE_CHARACTERS:
            raise _Overlong
        # Twice as much each time: the value is decoded from its beginning again.
        wanted, got = max(1, len(self._window) - self._at), 0
        while got < wanted:
            before = len(self._window) - self._at
            if not self._read():
                if got:
                    return
                raise _Unfinished
            got += len(self._window) - self._at - before

    def _read(self) -> bool:
        """Return one more chunk in the window; what has been used leaves it. False at the end."""
        chunk = next(self._chunks, None)
        if chunk is None:
            tail = self._decoder.decode(b"", final=True)
            self._window += tail
            return bool(tail)
        self.size_bytes += len(chunk)
        self._window, self._at = self._window[self._at :] + self._decoder.decode(chunk), 0
        return True
