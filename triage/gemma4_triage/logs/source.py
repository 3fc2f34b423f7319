"""A serving log as a stream of bytes: a file, stdin, packed (packed.py) or, where the standard library can, zstd.

Archives and files that are no text are refused with what to do instead. A file of UTF-16, as PowerShell's `>` writes
it and what appends to that, is read as UTF-8.
"""

from __future__ import annotations

import codecs
import importlib.util
import os
import re
import shlex
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, cast

from gemma4_triage.errors import UsageMistake
from gemma4_triage.logs.packed import LONGEST_MAGIC, Packed, Torn, is_packed
from gemma4_triage.own_document import own_document
from gemma4_triage.time_limit import Clock

CHUNK_BYTES = 1 << 16
"""What a pipe holds. Of more asked for, most is given back, which costs the kernel more than the reading itself."""
STDIN = "-"
PIPE_WAIT_S = 5.0
"""How long to wait for somebody who writes to a named pipe."""

_ZSTD = b"\x28\xb5\x2f\xfd"
_ZIP = b"PK\x03\x04"
_ARCHIVES = {
    _ZIP: ("a zip archive", "unzip -p {} FILE | gemma4-triage {} -"),
    b"7z\xbc\xaf": ("a 7z archive", "7z e -so {} | gemma4-triage {} -"),
}
# Of protocol 2 and later by its first bytes, of protocol 0 by the mark of the container that it holds.
_PICKLE = re.compile(rb"\x80[\x02-\x05]|\((?:dp|lp|tp)\d+\n")
_TAR_AT = 257  # where "ustar" stands in a tar archive
# Bytes that no text has: terminals are sent some others.
_CONTROLS = bytes({*range(32)} - {*b"\a\b\t\n\v\f\r\x1b"})
_MOST_CONTROLS = 0.05  # of the bytes of a text, which a torn write may leave in a log; what is packed has a tenth
_BOMB_BYTES, _BOMB_RATIO = 1 << 30, 500  # real logs shrink to a tenth or a hundredth


def is_read_as_it_lies(start: bytes) -> bool:
    """Return whether a file with these first bytes holds its text in single bytes, and is not packed."""
    return not (is_packed(start) or start.startswith(_ZSTD)) and _wide_encoding(start) is None


class NotUnpacked(UsageMistake):
    """An archive, or a file packed in a way that is not read: there may be a log in it."""


class Source:
    """One log, or another text of any length.

    Iterate over `chunks()` once; `problem` then says why it ended before its end, if it did.

    Args:
        name: A path, or "-" for stdin.
        verb: The command that reads it, for hints.
    """

    def __init__(self, name: str, verb: str = "logs") -> None:
        self.name = name
        self.verb = verb
        self.problem: str | None = None
        self._packed: BinaryIO | None = None

    def chunks(self) -> Iterator[bytes]:
        """Decompressed, at most CHUNK_BYTES each. What was read before damage is kept.

        Raises:
            UsageMistake: it is not there, is no file or no text, is an archive, or is compressed in a way that this
                Python cannot read.
        """
        with ExitStack() as stack:
            stream = self._open(stack)
            # read1: read would wait for a chunk of a pipe that somebody still writes to.
            read = getattr(stream, "read1", stream.read)
            decoder: codecs.IncrementalDecoder | None = None
            size, clock = 0, Clock()
            while True:
                try:
                    chunk = read(CHUNK_BYTES)
                except (EOFError, OSError, Torn) as error:
                    self.problem = f"ends early: {error}"
                    return
                if not chunk:
                    return
                if not size:
                    if (encoding := _wide_encoding(chunk)) is not None:
                        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
                    else:
                        self._need_text(chunk)
                size += len(chunk)
                if clock.is_over:
                    self.problem = "ends early: it took too long"
                    return
                yield chunk if decoder is None else decoder.decode(chunk).encode(errors="replace")
                if size > _BOMB_BYTES and self._packed is not None and size > _BOMB_RATIO * self._packed.tell():
                    self.problem = f"ends early: unpacked it is more than {_BOMB_RATIO} times as large, as no log is"
                    return

    def _need_text(self, start: bytes) -> None:
        """Refuse what is no text by its first bytes, packed or not."""
        for magic, (kind, command) in _ARCHIVES.items():
            if start.startswith(magic):
                hint = f"unpack it: {command.format(shlex.quote(self.name), self.verb)}"
                if magic == _ZIP and self.verb != "profile" and self.name != STDIN:
                    hint = f"to read all that is in it: gemma4-triage diagnose {shlex.quote(self.name)}"
                raise NotUnpacked(f"{self.name} is {kind}", hint)
        if is_packed(start):
            raise NotUnpacked(f"{self.name} was packed twice", "unpack it once, and name what comes out")
        if (own := own_document(start, self.name)) is not None:
            raise UsageMistake(f"{self.name} is {own.what}", own.read_by)
        if _PICKLE.match(start):
            raise UsageMistake(
                f"{self.name} is a pickle of no kind that is read, and nothing in it was unpickled",
                "diagnose reads SGLang's crash snapshots and request dumps, and torch's flight recorder",
            )
        if start.startswith(b"ustar", _TAR_AT):
            hint = f"unpack it: tar -xOf {shlex.quote(self.name)} FILE | gemma4-triage {self.verb} -"
            raise NotUnpacked(f"{self.name} is a tar archive", hint)
        controls = len(start) - len(start.translate(None, _CONTROLS))
        if controls > _MOST_CONTROLS * len(start) and len(start) > 100:
            wanted = "a Chrome trace, as JSON" if self.verb == "profile" else "the server's stdout and stderr, as text"
            raise UsageMistake(f"{self.name} is no text", f"give {wanted}, plain or packed")

    def _open(self, stack: ExitStack) -> BinaryIO:
        raw = self._raw(stack)
        try:
            start = _peek(raw)
        except OSError as error:
            said = f"{self.name} cannot be read: {error.strerror or error}"
            raise UsageMistake(said, "check the disk or the share that it lies on; a copy may be read") from error
        if (is_packed(start) or start.startswith(_ZSTD)) and self.name != STDIN:
            self._packed = raw
        if is_packed(start):
            return cast(BinaryIO, Packed(raw, start))
        if start.startswith(_ZSTD):
            return self._zstd(raw, stack)
        return raw

    def _raw(self, stack: ExitStack) -> BinaryIO:
        if self.name == STDIN:
            # None where the process was started with stdin closed.
            if sys.stdin is None:
                raise UsageMistake("stdin is closed", "pipe a log into it, or name a file")
            return sys.stdin.buffer
        if not self.name:
            raise UsageMistake("'' is no path", "name a file; - reads stdin")
        if os.path.isdir(self.name):
            # diagnose itself takes folders.
            taker = "--log" if self.verb == "diagnose" else self.verb
            raise UsageMistake(f"{self.name} is a folder", f"{taker} takes files: name those in it, oldest first")
        path = Path(self.name)
        try:
            raw = stack.enter_context(_open_pipe(path) if path.is_fifo() else path.open("rb"))
        except OSError as error:
            said = f"{self.name} cannot be read: {error.strerror}"
            raise UsageMistake(said, "check the path; - reads stdin") from error
        except ValueError as error:
            raise UsageMistake(f"{self.name!r} is no path: {error}", "name a file; - reads stdin") from error
        mode = os.fstat(raw.fileno()).st_mode
        # Others than a terminal may never end, as /dev/zero; a pipe or a socket is somebody's output.
        if stat.S_ISBLK(mode) or (stat.S_ISCHR(mode) and not raw.isatty()):
            raise UsageMistake(f"{self.name} is a device", "name a file; - reads stdin")
        return raw

    def _zstd(self, raw: BinaryIO, stack: ExitStack) -> BinaryIO:
        # In the standard library from Python 3.14 on.
        if importlib.util.find_spec("compression") is None:
            hint = f"zstd -dk {shlex.quote(self.name)} unpacks it"
            raise NotUnpacked(f"{self.name} is zstd, which this Python cannot read", hint)
        zstd = importlib.import_module("compression.zstd")
        return stack.enter_context(zstd.ZstdFile(raw))


def _open_pipe(path: Path) -> BinaryIO:
    """Return a pipe that somebody writes to. Raises UsageMistake if nobody does within PIPE_WAIT_S, and OSError."""
    opened: list[BinaryIO | OSError] = []

    def wait() -> None:
        try:
            opened.append(path.open("rb"))
        except OSError as error:
            opened.append(error)

    # Opening waits for a writer without end, and no read tells one that is slow from none at all.
    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    waiting.join(PIPE_WAIT_S)
    if waiting.is_alive():
        raise UsageMistake(f"{path} is a pipe that nobody writes to", "name a file; - reads stdin")
    (found,) = opened
    if isinstance(found, OSError):
        raise found
    return found


def _peek(raw: BinaryIO) -> bytes:
    """Return the first bytes, without taking them."""
    peek = getattr(raw, "peek", None)
    return b"" if peek is None else peek(LONGEST_MAGIC)[:LONGEST_MAGIC]


def _wide_encoding(start: bytes) -> str | None:
    """Return the encoding of a text in UTF-16, with a mark at its beginning or without; None for any other."""
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    some = start[:400]
    if len(some) < 100:
        return None
    even, odd = some[::2], some[1::2]
    # Of a log's letters, which are ASCII's, each other byte is zero.
    for zeros, letters, name in ((odd, even, "utf-16-le"), (even, odd, "utf-16-be")):
        if zeros.count(0) > 0.8 * len(zeros) and not letters.count(0):
            return name
    return None
