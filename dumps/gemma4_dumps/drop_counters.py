"""counters.json in a store's root: how many dumps the caps removed or refused, by reason."""

import contextlib
import json
import os
from collections import Counter
from pathlib import Path

from .errors import DumpUnreadable
from .safe_file import read_regular, write_private
from .schema import SCHEMA_VERSION

COUNTERS_NAME = "counters.json"
_MAX_BYTES = 64 * 1024


def load_counters(root: Path) -> Counter[str]:
    """Dropped dumps by reason. A file that cannot be read counts as none: it must not stand in a dump's way."""
    try:
        stored = json.loads(read_regular(root / COUNTERS_NAME, _MAX_BYTES))
        return Counter({str(k)[:64]: v for k, v in stored["dropped_dumps"].items() if type(v) is int and v > 0})
    except (DumpUnreadable, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Counter()


def add_to_counters(root: Path, dropped: Counter[str]) -> None:
    """Add to the stored counts. The caller holds the store's lock. Raises OSError."""
    if not dropped:
        return
    total = load_counters(root) + dropped
    text = json.dumps({"schema_version": SCHEMA_VERSION, "dropped_dumps": dict(total)})
    temporary_path = root / f".{COUNTERS_NAME}.{os.getpid()}"
    # One that a killed process of the same number left behind.
    with contextlib.suppress(FileNotFoundError):
        temporary_path.unlink()
    write_private(temporary_path, text.encode())
    os.replace(temporary_path, root / COUNTERS_NAME)
