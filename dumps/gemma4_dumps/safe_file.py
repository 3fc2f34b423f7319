"""Open files in a dump that someone else may have written, and write files that nobody else may read."""

import os
import stat
from pathlib import Path

from .errors import DumpUnreadable

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600
MAX_FILE_BYTES = 1024**3
"""The largest tensor or event file that a reader takes into memory."""


def read_regular(path: Path, max_bytes: int) -> bytes:
    """The content of a regular file. Never follows a symlink and never waits on a pipe.

    Raises DumpUnreadable if there is no such file, it is something else, or it has more than max_bytes.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise DumpUnreadable(f"{path.name} is not a regular file")
            if status.st_size > max_bytes:
                raise DumpUnreadable(f"{path.name} has {status.st_size} bytes; at most {max_bytes} are read")
            data = file.read(max_bytes + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DumpUnreadable(f"{path.name} cannot be read: {reason}") from error
    if len(data) > max_bytes:
        raise DumpUnreadable(f"{path.name} grew beyond {max_bytes} bytes while it was read")
    return data


def write_private(path: Path, data: bytes) -> None:
    """Create a file that must not exist yet, mode 0600, and fsync it. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    with os.fdopen(descriptor, "wb") as file:
        # A umask may have taken bits away; the owner must be able to read it back.
        os.fchmod(file.fileno(), FILE_MODE)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
