"""Read a small file that a command line names, without ever waiting for it."""

import errno
import os
import stat
from pathlib import Path

MOST_BYTES = 64 << 20
NOT_A_FILE = "it is no regular file"


def read_input(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a file. Raises OSError, also for what is no regular file or larger than `most_bytes`.

    A pipe that nobody writes to would be waited for without end.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise OSError(errno.EINVAL, NOT_A_FILE)
        content = opened.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes")
    return content
