"""The process' stdout and stderr, whatever the shell made of them: closed, full, or of another encoding."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys

# What a terminal without Unicode gets instead. The blocks of a sparkline stay a row of rising marks.
_ASCII = {"…": "...", **dict(zip("▁▂▃▄▅▆▇█", ".:-=+*#@", strict=True))}
_HANDLER = "gemma4_triage"
# What a write says where the disk, the quota or the terminal is at an end.
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF))


def prepare_streams() -> None:
    """Call once, before anything is opened or printed."""
    # Closed by the shell (>&-). Were stderr None, print would put what is for it on stdout.
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    codecs.register_error(_HANDLER, _stand_in)
    for stream in (sys.stdout, sys.stderr):
        # A dump from another machine must not fail on this terminal's encoding.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


def _nowhere() -> io.TextIOWrapper:
    return open(os.devnull, "w", encoding="utf-8")


def stdout_is_lost(error: OSError) -> bool:
    """Say whether it is writing to stdout that failed, and not something else that a command did."""
    try:
        sys.stdout.flush()
    except OSError:
        return True
    # What was too long for the buffer is gone. A file that cannot be opened has a name.
    return error.filename is None and error.errno in _FULL


def abandon_stdout() -> None:
    """Say nothing more there, not even by the flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stand_in(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(_ASCII.get(one) or one.encode("ascii", "backslashreplace").decode() for one in text), error.end
