"""A small file that is there whole or not at all, and that nobody else may read."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Replace `path` (0600), in a folder that is made if need be (0700).

    Raises:
        OSError: a full disk, for example. What stood there before still does, and nothing is left beside it.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_suffix(f".tmp{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        temporary.rename(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
