"""Open files in a dump that someone else may have written, and write files that nobody else may read."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .errors import DumpUnreadable

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
CHUNK_BYTES = 1024**2
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def open_regular(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading. Never follows a symlink and never waits on a pipe.

    Raises DumpUnreadable if there is no such file or it is something else.
    """
    with as_unreadable(path):
        descriptor = os.open(path, _READ_FLAGS)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DumpUnreadable(f"{path.name} is not a regular file")
    with os.fdopen(descriptor, "rb") as file:
        yield file


@contextmanager
def as_unreadable(path: Path) -> Iterator[None]:
    """Raise what the system says against reading `path` as DumpUnreadable."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise _unreadable(path.name, error) from error


def read_regular(path: Path | str, max_bytes: int) -> bytes:
    """Return the content of a regular file, see `open_regular`. Raises DumpUnreadable, also for more than max_bytes.

    A list reads 10^5 files in this way, so there are no file objects and no paths: both cost more than the reading.
    """
    name = os.path.basename(path)
    try:
        descriptor = os.open(path, _READ_FLAGS)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise DumpUnreadable(f"{name} is not a regular file")
            size = status.st_size
            if size > max_bytes:
                raise DumpUnreadable(f"{name} has {size} bytes; at most {max_bytes} are read")
            # Not one byte more than the most that is allowed: a buffer of that size would be made for every small file.
            data = os.read(descriptor, size + 1)
            while 0 < len(data) < size and (more := os.read(descriptor, size + 1 - len(data))):
                data += more
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from error
    if len(data) > size:
        raise DumpUnreadable(f"{name} grew beyond {size} bytes while it was read")
    return data


def _unreadable(name: str, error: OSError | ValueError) -> DumpUnreadable:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    hint = "have somebody who may read it give you a copy" if isinstance(error, PermissionError) else ""
    return DumpUnreadable(f"{name} cannot be read: {reason}", hint)


def json_files(folder: Path) -> list[Path]:
    """Return the names in a folder that end in .json, sorted; none if the folder is not there or is a symlink.

    The folder lies beside dumps that someone else may have written, and a link could lead to anybody's files.
    """
    return [] if os.path.islink(folder) else sorted(folder.glob("*.json"))


def read_chunks(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield the rest of an open file, a piece at a time. Raises DumpUnreadable."""
    while True:
        with as_unreadable(path):
            chunk = file.read(CHUNK_BYTES)
        if not chunk:
            return
        yield chunk


def write_private(path: Path, data: bytes, durable: bool = True) -> None:
    """Create a file that must not exist yet, mode 0600, and fsync it if it has to be durable. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        # A umask may have taken bits away; the owner must be able to read it back.
        os.fchmod(file.fileno(), FILE_MODE)
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())


def write_chunks(path: Path, chunks: Iterator[bytes]) -> None:
    """Create a file that must not exist yet, mode 0600, of pieces; nothing is synced. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        for chunk in chunks:
            file.write(chunk)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
