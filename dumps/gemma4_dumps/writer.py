"""Write a dump without ever getting in the way of the exception that it is about."""

import os
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from .caps import DEFAULT_CAPS, StoreCaps
from .draft import DumpDraft, TensorPayload
from .drop_counters import add_pending, count_dropped, dropped_so_far
from .listing import dump_names, survey
from .lock import LOCK_TIMEOUT_S, store_lock
from .manifest_file import signature_of
from .removal import remove_dumps
from .retention import Incoming, Removal, crowd_out, plan_retention
from .safe_file import sync_directory
from .staging import StagedDump, stage_dump

__all__ = ["LOCK_TIMEOUT_S", "DumpDraft", "TensorPayload", "WriteOutcome", "write_dump"]


@dataclass(frozen=True)
class WriteOutcome:
    """What became of a write; exactly one of path, dropped_reason and error is set.

    Attributes:
        path: of the dump.
        dropped_reason: set if the caps refused it.
        error: set if it failed.
        cause: the exception that `error` names, for a caller who raises and wants it in the chain.
    """

    path: Path | None = None
    dropped_reason: str | None = None
    error: str | None = None
    cause: Exception | None = None


def write_dump(
    root: Path | str, draft: DumpDraft, caps: StoreCaps = DEFAULT_CAPS, lock_timeout_s: float = LOCK_TIMEOUT_S
) -> WriteOutcome:
    """Store one dump in root and apply the caps. Raises nothing; KeyboardInterrupt and SystemExit pass."""
    try:
        return _write(Path(root), draft, caps, lock_timeout_s)
    # Broad on purpose, and only here: the caller is a server that is handling another exception, and whatever goes
    # wrong with the evidence must not replace it.
    except Exception as error:  # noqa: BLE001
        return WriteOutcome(error=f"{type(error).__name__}: {error}", cause=error)


def _write(root: Path, draft: DumpDraft, caps: StoreCaps, lock_timeout_s: float) -> WriteOutcome:
    staged = stage_dump(root, draft, caps.bytes_per_dump, dropped_so_far(root))
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
    if caps.count < 1 or staged.size_bytes > caps.total_bytes:
        count_dropped(root, "refused")
        add_pending(root)
        return WriteOutcome(
            dropped_reason=f"{staged.size_bytes} bytes in one dump do not fit a store of "
            f"{caps.count} dumps and {caps.total_bytes} bytes"
        )
    remove_dumps(root, _removals(root, staged, caps))
    return WriteOutcome(path=_publish(root, staged))


def _removals(root: Path, staged: StagedDump, caps: StoreCaps) -> list[Removal]:
    if crowd := crowd_out(root, dump_names(root), caps):
        return crowd
    incoming = Incoming(signature_of(staged.manifest), staged.size_bytes)
    return plan_retention(survey(root), caps, datetime.now(UTC), incoming)


def _admit_unlocked(root: Path, staged: StagedDump, caps: StoreCaps, lock_timeout_s: float) -> WriteOutcome:
    """Admit the dump without the lock: nothing may be removed, but evidence is kept while there is room for it.

    What is still being written counts too, this dump included, so several processes here never exceed the caps.
    """
    few = len(dump_names(root)) <= caps.count
    if few and sum(dump.size_bytes for dump in survey(root, signatures=False)) <= caps.total_bytes:
        return WriteOutcome(path=_publish(root, staged))
    count_dropped(root, "store_busy")
    return WriteOutcome(dropped_reason=f"the store is full and was locked by another process for {lock_timeout_s} s")


def _publish(root: Path, staged: StagedDump) -> Path:
    path = root / staged.manifest.dump_id
    os.rename(staged.temporary_path, path)
    sync_directory(root)
    return path
