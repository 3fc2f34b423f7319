"""A serving log as a stream of bytes: a file, stdin, gzip or, where the standard library can, zstd."""

from __future__ import annotations

import gzip
import importlib.util
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, cast

from gemma4_triage.errors import UsageMistake

CHUNK_BYTES = 1 << 20
STDIN = "-"

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"


class Source:
    """One log. Iterate over `chunks()` once; `problem` then says why it ended before its end, if it did.

    name: a path, or "-" for stdin.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.problem: str | None = None

    def chunks(self) -> Iterator[bytes]:
        """Decompressed, at most CHUNK_BYTES each. What was read before damage is kept.

        Raises:
            UsageMistake: it is not there, is no file, or is compressed in a way that this Python cannot read.
        """
        with ExitStack() as stack:
            stream = self._open(stack)
            # read1: read would fill its chunk, and lose what it had when the data turns out to be torn.
            read = getattr(stream, "read1", stream.read)
            while True:
                try:
                    chunk = read(CHUNK_BYTES)
                except (EOFError, zlib.error, OSError) as error:
                    self.problem = f"ends early: {error}"
                    return
                if not chunk:
                    return
                yield chunk

    def _open(self, stack: ExitStack) -> BinaryIO:
        raw = self._raw(stack)
        start = _peek(raw)
        if start.startswith(_GZIP):
            return cast(BinaryIO, stack.enter_context(gzip.GzipFile(fileobj=raw)))
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
            raise UsageMistake(f"{self.name} is a folder", "name the log files in it, oldest first")
        path = Path(self.name)
        try:
            raw = stack.enter_context(path.open("rb"))
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
            hint = f"zstd -dk {self.name} unpacks it"
            raise UsageMistake(f"{self.name} is zstd, which this Python cannot read", hint)
        zstd = importlib.import_module("compression.zstd")
        return stack.enter_context(zstd.ZstdFile(raw))


def _peek(raw: BinaryIO) -> bytes:
    """The first bytes, without taking them."""
    peek = getattr(raw, "peek", None)
    return b"" if peek is None else peek(4)[:4]
