"""The advisory lock of a dump store. Several ranks write into one root."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .safe_file import FILE_MODE

LOCK_NAME = ".lock"
LOCK_TIMEOUT_S = 2.0
"""How long whoever writes or removes dumps waits for the lock."""
_POLL_S = 0.01


@contextmanager
def store_lock(root: Path, timeout_s: float) -> Iterator[bool]:
    """Yield True while holding the root's lock, False if it could not be had in timeout_s.

    The kernel lets go when the holder dies. A holder that is only stopped must not stop a server, hence the timeout.
    Raises OSError if the lock file cannot be opened.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(root / LOCK_NAME, flags, FILE_MODE)
    try:
        yield _acquire(descriptor, time.monotonic() + timeout_s)
    finally:
        # Closing lets go of the lock too.
        os.close(descriptor)


def _acquire(descriptor: int, deadline_s: float) -> bool:
    # POSIX only, and only a writer needs it: dumps can be read anywhere.
    import fcntl

    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(_POLL_S)
        else:
            return True
