"""How many dumps a store has not kept, by reason: counters.json in its root, and what waits to be added to it.

Counting touches no disk, because a fault may repeat ten thousand times a second. What was counted is added to the
file with the next dump, when the store is pruned, every FLUSH_EVERY_S while counting goes on, and at exit.
"""

import atexit
import contextlib
import json
import os
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

from .errors import DumpUnreadable
from .lock import store_lock
from .safe_file import read_regular, write_private
from .schema import SCHEMA_VERSION

COUNTERS_NAME = "counters.json"
FLUSH_EVERY_S = 5.0
_MAX_BYTES = 64 * 1024
_EXIT_LOCK_TIMEOUT_S = 5.0


def load_counters(root: Path) -> Counter[str]:
    """Return how many dumps were not kept, by reason.

    A file that cannot be read counts as none: it must not stand in a dump's way.
    """
    try:
        stored = json.loads(read_regular(root / COUNTERS_NAME, _MAX_BYTES))
        return Counter({str(k)[:64]: v for k, v in stored["dropped_dumps"].items() if type(v) is int and v > 0})
    except (DumpUnreadable, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Counter()


class _Pending:
    """Counts of this process that are in no file yet, by root."""

    def __init__(self) -> None:
        self.guard = threading.Lock()
        self.counts: defaultdict[Path, Counter[str]] = defaultdict(Counter)
        self.next_flush_s = time.monotonic() + FLUSH_EVERY_S


_pending = _Pending()


def _forget_the_parents() -> None:
    # A forked child must neither count them again, nor wait for a lock that a thread of the parent held.
    global _pending
    _pending = _Pending()


os.register_at_fork(after_in_child=_forget_the_parents)


def count_dropped(root: Path, reason: str, number: int = 1) -> None:
    """Count a dump that was not kept, or not even written. Raises nothing."""
    with _pending.guard:
        _pending.counts[root][reason] += number
        due = time.monotonic() >= _pending.next_flush_s
        if due:
            _pending.next_flush_s = time.monotonic() + FLUSH_EVERY_S
    if due:
        flush_dropped(root, lock_timeout_s=0)


def dropped_so_far(root: Path) -> int:
    """Return how many were dropped, in the file and waiting."""
    with _pending.guard:
        waiting = _pending.counts.get(root, Counter[str]()).total()
    return load_counters(root).total() + waiting


def flush_dropped(root: Path, lock_timeout_s: float) -> None:
    """Add what waits to the file. What cannot be added waits on. Raises nothing."""
    with contextlib.suppress(OSError), store_lock(root, lock_timeout_s) as locked:
        if locked:
            add_pending(root)


def add_pending(root: Path) -> None:
    """Do the same for a caller who holds the store's lock. A count is never worth a dump: raises nothing."""
    with _pending.guard:
        waiting = _pending.counts.pop(root, None)
    if not waiting:
        return
    try:
        _store(root, load_counters(root) + waiting)
    except OSError:
        with _pending.guard:
            _pending.counts[root].update(waiting)


def _store(root: Path, total: Counter[str]) -> None:
    text = json.dumps({"schema_version": SCHEMA_VERSION, "dropped_dumps": dict(total)})
    # One name for all: whoever holds the lock also clears away what a killed process left.
    temporary_path = root / f".{COUNTERS_NAME}.tmp"
    with contextlib.suppress(FileNotFoundError):
        temporary_path.unlink()
    try:
        # Not durable: while one process waits for the disk, the others wait for the lock.
        write_private(temporary_path, text.encode(), durable=False)
        os.replace(temporary_path, root / COUNTERS_NAME)
    except OSError:
        with contextlib.suppress(OSError):
            temporary_path.unlink()
        raise


@atexit.register
def _flush_all() -> None:
    for root in list(_pending.counts):
        flush_dropped(root, _EXIT_LOCK_TIMEOUT_S)
