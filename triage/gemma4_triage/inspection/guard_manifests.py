"""What processes left about their patches: guard manifests, newest first. Those that cannot be read are passed over."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from gemma4_dumps.errors import DumpUnreadable
from gemma4_dumps.manifest_file import MAX_MANIFEST_BYTES
from gemma4_dumps.safe_file import json_files, read_regular

_ONE_START_S = 300
"""How long after each other the processes of one server write their manifests at most: a model loads meanwhile."""
_UNREADABLE = (DumpUnreadable, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def newest_with(root: Path, key: str, can_be_read: Callable[[dict], bool]) -> dict | None:
    """Return the newest guard manifest below the store `root` in which a patch's row has something under `key`."""
    for path in _newest_first(root):
        try:
            manifest = json.loads(read_regular(path, MAX_MANIFEST_BYTES))
            rows = [row for row in manifest["patches"] if row.get(key)]
            if rows and "pid" in manifest and all(can_be_read(row) for row in rows):
                return manifest
        except _UNREADABLE:
            continue
    return None


def newest_of(root: Path, patch_id: str) -> str | None:
    """Say what the last process that was asked for this patch made of it, in words; None if none is on record."""
    for path in _newest_first(root):
        try:
            manifest = json.loads(read_regular(path, MAX_MANIFEST_BYTES))
            for row in manifest["patches"]:
                if row["id"] == patch_id:
                    return _words(manifest, row)
        except _UNREADABLE:
            continue
    return None


def faults_of_last(root: Path) -> dict[str, bool] | None:
    """Return the faults that the last server here was asked for, and whether each has acted; None if there was none.

    A server's processes attach the same faults, and in most of them a fault has nothing to act on: it has acted if it
    did in one of the manifests that were written with the same settings at about the same time.

    Args:
        root: The store that the folder of guard manifests is in.
    """
    last: tuple[Any, ...] | None = None
    acted: dict[str, bool] = {}
    for path in _newest_first(root):
        try:
            manifest = json.loads(read_regular(path, MAX_MANIFEST_BYTES))
            rows = {str(row["id"]): row["injected"] is True for row in manifest["patches"] if "injected" in row}
            start = datetime.fromisoformat(manifest["created_utc"])
            server = manifest["hostname"], manifest["settings"]
        except _UNREADABLE:
            continue
        if last is None:
            if not rows:
                continue
            last = (*server, start)
        elif server != last[:2] or (last[2] - start).total_seconds() > _ONE_START_S:
            break
        acted |= {fault: acted.get(fault, False) or injected for fault, injected in rows.items()}
    return acted if last else None


def _words(manifest: dict, row: dict) -> str:
    state = "attached" if row["attached"] else f"not attached ({row.get('reason') or 'no reason given'})"
    words = [f"{state} in pid {int(manifest['pid'])}, {manifest['created_utc']}"]
    words += ["verified" if manifest.get("verified") else "NOT verified"]
    words += [f"self test {row['self_test']}"] if row.get("self_test") else []
    words += [f"paths taken: {', '.join(map(str, row['paths']))}"] if row.get("paths") else []
    words += [str(row["decision"])] if row.get("decision") else []
    return "; ".join(words)


def _newest_first(root: Path) -> list[Path]:
    return json_files(root / "guards")[::-1]
