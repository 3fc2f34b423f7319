"""Write a dump without ever getting in the way of the exception that it is about."""

import os
import shutil
import threading
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from .caps import DEFAULT_CAPS, StoreCaps
from .draft import DumpDraft, TensorPayload
from .drop_counters import add_to_counters, load_counters
from .listing import scan_store, signature_of
from .lock import store_lock
from .removal import remove_dumps
from .retention import Incoming, plan_retention
from .safe_file import sync_directory
from .staging import StagedDump, stage_dump

__all__ = ["LOCK_TIMEOUT_S", "DumpDraft", "TensorPayload", "WriteOutcome", "write_dump"]

LOCK_TIMEOUT_S = 2.0

_refused_unlocked: Counter[str] = Counter()
_refused_guard = threading.Lock()


@dataclass(frozen=True)
class WriteOutcome:
    """Exactly one is set: path of the dump; dropped_reason, if the caps refused it; error, if it failed."""

    path: Path | None = None
    dropped_reason: str | None = None
    error: str | None = None


def write_dump(
    root: Path | str, draft: DumpDraft, caps: StoreCaps = DEFAULT_CAPS, lock_timeout_s: float = LOCK_TIMEOUT_S
) -> WriteOutcome:
    """Store one dump in root and apply the caps. Raises nothing; KeyboardInterrupt and SystemExit pass."""
    try:
        return _write(Path(root), draft, caps, lock_timeout_s)
    # Broad on purpose, and only here: the caller is a server that is handling another exception, and whatever goes
    # wrong with the evidence must not replace it.
    except Exception as error:  # noqa: BLE001
        return WriteOutcome(error=f"{type(error).__name__}: {error}")


def _write(root: Path, draft: DumpDraft, caps: StoreCaps, lock_timeout_s: float) -> WriteOutcome:
    refused_before = load_counters(root).total()
    with _refused_guard:
        refused_before += _refused_unlocked.total()
    staged = stage_dump(root, draft, caps.bytes_per_dump, refused_before)
    published = False
    try:
        # The slow part, the writing, is done: the lock is held for renames and removals only.
        with store_lock(root, lock_timeout_s) as locked:
            outcome = _admit(root, staged, caps) if locked else _admit_unlocked(root, staged, caps, lock_timeout_s)
        published = outcome.path is not None
    finally:
        if not published:
            shutil.rmtree(staged.temporary_path, ignore_errors=True)
    return outcome


def _admit(root: Path, staged: StagedDump, caps: StoreCaps) -> WriteOutcome:
    with _refused_guard:
        add_to_counters(root, _refused_unlocked)
        _refused_unlocked.clear()
    if caps.count < 1 or staged.size_bytes > caps.total_bytes:
        add_to_counters(root, Counter(refused=1))
        return WriteOutcome(
            dropped_reason=f"{staged.size_bytes} bytes in one dump do not fit a store of "
            f"{caps.count} dumps and {caps.total_bytes} bytes"
        )
    incoming = Incoming(signature_of(staged.manifest), staged.size_bytes)
    remove_dumps(root, plan_retention(scan_store(root), caps, datetime.now(UTC), incoming))
    return WriteOutcome(path=_publish(root, staged))


def _admit_unlocked(root: Path, staged: StagedDump, caps: StoreCaps, lock_timeout_s: float) -> WriteOutcome:
    """Without the lock nothing may be removed, but evidence is still worth keeping while there is room for it."""
    entries = scan_store(root)
    if len(entries) <= caps.count and sum(entry.size_bytes for entry in entries) <= caps.total_bytes:
        return WriteOutcome(path=_publish(root, staged))
    with _refused_guard:
        _refused_unlocked["store_busy"] += 1
    return WriteOutcome(dropped_reason=f"the store is full and was locked by another process for {lock_timeout_s} s")


def _publish(root: Path, staged: StagedDump) -> Path:
    path = root / staged.manifest.dump_id
    os.rename(staged.temporary_path, path)
    sync_directory(root)
    return path
