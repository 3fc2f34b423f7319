"""What lies in a dump store's root, torn dumps included."""

import os
import socket
import time
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Literal

from .directory_name import parse_name, safe_part
from .errors import DumpIncompatible, DumpUnreadable
from .manifest_file import MANIFEST_NAME, load_manifest
from .schema import Manifest

WRITING_GRACE_S = 300
"""A temporary directory of a live process counts as being written for this long; then as torn."""

Signature = tuple[str | None, ...]


@dataclass(frozen=True)
class DumpEntry:
    """One directory. manifest: None unless complete. problem: why it is not complete."""

    path: Path
    dump_id: str
    created_utc: datetime
    size_bytes: int
    state: Literal["complete", "torn", "writing", "incompatible"]
    manifest: Manifest | None
    problem: str | None

    @property
    def signature(self) -> Signature | None:
        return None if self.manifest is None else signature_of(self.manifest)


def signature_of(manifest: Manifest) -> Signature:
    """Dumps of one signature are the same event again."""
    return (manifest.rule, manifest.verdict, manifest.role, manifest.layer.type, manifest.site)


def scan_store(root: Path) -> list[DumpEntry]:
    """All dumps in root, newest first; empty if there is no such directory. Symlinks are not followed.

    Raises OSError if root is not a directory or must not be read.
    """
    try:
        with os.scandir(root) as found:
            directories = [Path(item.path) for item in found if item.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    entries = [entry for path in directories if (entry := _entry(path)) is not None]
    return sorted(entries, key=lambda entry: (entry.created_utc, entry.dump_id), reverse=True)


def _entry(path: Path) -> DumpEntry | None:
    parsed = parse_name(path.name)
    if parsed is None:
        return None
    manifest, problem, state = None, None, "complete"
    size_bytes = _size_bytes(path)
    if parsed.temporary:
        alive = parsed.host == safe_part(socket.gethostname()) and _is_alive(parsed.pid)
        state = "writing" if alive and _age_s(path) < WRITING_GRACE_S else "torn"
        problem = "still under its temporary name" + ("" if alive else f": writer {parsed.pid} is gone")
    else:
        try:
            status = (path / MANIFEST_NAME).lstat()
            manifest = _cached_manifest(path, status.st_ino, status.st_mtime_ns, status.st_size)
        except DumpIncompatible as error:
            problem, state = str(error), "incompatible"
        except DumpUnreadable as error:
            problem, state = str(error), "torn"
        except OSError as error:
            problem, state = f"no {MANIFEST_NAME}: {error.strerror}", "torn"
    return DumpEntry(path, path.name, parsed.created_utc, size_bytes, state, manifest, problem)


@lru_cache(maxsize=512)
def _cached_manifest(path: Path, inode: int, mtime_ns: int, size_bytes: int) -> Manifest:
    # A server that logs many violations scans its store for each; a published manifest never changes.
    return load_manifest(path)


def _size_bytes(path: Path) -> int:
    try:
        with os.scandir(path) as found:
            return sum(item.stat(follow_symlinks=False).st_size for item in found)
    except OSError:
        # Another process is removing it.
        return 0


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True
