"""Every reader, explicitly, and which file is whose by its content."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemma4_triage.readers import collection, cuda_gdb, flashinfer_log, flight_recorder, py_spy, requests_file
from gemma4_triage.readers.reading import Reading

SNIFFED_BYTES = 64 * 1024


@dataclass(frozen=True)
class Reader:
    """What reads one kind of file.

    Attributes:
        id: names the kind.
        what: names it to a reader, with an article.
        takes: says by the first bytes of a file whether it may be of this kind.
        read: reads all files of this kind that lie in one folder, each named by its path; raises NotThis for a first
            file that only looked like one.
    """

    id: str
    what: str
    takes: Callable[[bytes], bool]
    read: Callable[[Sequence[Path]], Iterable[Reading]]


READERS: tuple[Reader, ...] = (
    Reader(collection.KIND, "a bundle of collect", collection.takes, collection.read),
    Reader(requests_file.KIND, "a crash snapshot of SGLang", requests_file.takes, requests_file.read),
    Reader(flight_recorder.KIND, "torch's flight recorder", flight_recorder.takes, flight_recorder.read),
    Reader(
        flashinfer_log.DUMPS_KIND,
        "an index of FlashInfer's dumps",
        flashinfer_log.takes_dumps,
        flashinfer_log.read_dumps,
    ),
    Reader(flashinfer_log.LOG_KIND, "a log of FlashInfer", flashinfer_log.takes_log, flashinfer_log.read_logs),
    Reader(py_spy.KIND, "a stack of py-spy", py_spy.takes, py_spy.read),
    Reader(cuda_gdb.KIND, "a text of cuda-gdb", cuda_gdb.takes, cuda_gdb.read),
)
TITLES: dict[str, str] = {
    collection.RULE: collection.TITLE,
    requests_file.RULE: requests_file.TITLE,
    flashinfer_log.UNFINISHED: flashinfer_log.UNFINISHED_TITLE,
    flashinfer_log.PAGE_RULE: flashinfer_log.PAGE_TITLE,
    flashinfer_log.NAN_RULE: flashinfer_log.NAN_TITLE,
}
"""What each rule that only readers have is about, by its id."""


def reader_of(head: bytes) -> Reader | None:
    """Return the reader that takes a file with these first bytes; None if no reader does."""
    return next((reader for reader in READERS if reader.takes(head)), None)


def head_of(path: Path) -> bytes:
    """Return the first bytes of a regular file; empty for anything else. Never waits on a pipe. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        return file.read(SNIFFED_BYTES) if os.path.isfile(path) else b""
