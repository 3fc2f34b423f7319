"""What processes left about their patches: guard manifests, newest first. Those that cannot be read are passed over."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from gemma4_dumps.safe_file import json_files

_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


def newest_with(root: Path, key: str, can_be_read: Callable[[dict], bool]) -> dict | None:
    """The newest guard manifest below the store `root` in which a patch's row has something under `key`."""
    for path in _newest_first(root):
        try:
            manifest = json.loads(path.read_text())
            rows = [row for row in manifest["patches"] if row.get(key)]
            if rows and "pid" in manifest and all(can_be_read(row) for row in rows):
                return manifest
        except _UNREADABLE:
            continue
    return None


def newest_of(root: Path, patch_id: str) -> str | None:
    """What the last process that was asked for this patch made of it, in words; None if none is on record."""
    for path in _newest_first(root):
        try:
            manifest = json.loads(path.read_text())
            for row in manifest["patches"]:
                if row["id"] == patch_id:
                    return _words(manifest, row)
        except _UNREADABLE:
            continue
    return None


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
