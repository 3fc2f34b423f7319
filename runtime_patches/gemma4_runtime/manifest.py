"""The guard manifest: what was asked for, what is attached and what was verified, one file per process."""

from __future__ import annotations

import json
import os
import socket
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gemma4_dumps.redaction import redact_launch_args
from gemma4_runtime.whole_file import write_whole

SCHEMA_VERSION = "1.0"
_KEPT = 64
_BOOT = Path("/proc/sys/kernel/random/boot_id")


def build_manifest(
    asked: list[dict[str, Any]], settings: dict[str, Any], versions: dict[str, str], gpu: dict[str, Any] | None
) -> dict[str, Any]:
    """Return everything about this process's guards as one JSON object."""
    return {
        "schema_version": SCHEMA_VERSION,
        "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "hostname": socket.gethostname(),
        "pid": os.getpid(),
        "process": process_identity(),
        "command": redact_launch_args(sys.argv),
        "settings": settings,
        "patches": asked,
        "verified": False,
        "versions": versions,
        "gpu": gpu,
    }


def process_identity() -> dict[str, Any]:
    """Return what tells this process from a later one of the same number: boot, namespace of numbers, start in ticks.

    A value is None where the system does not say.
    """
    return {"boot_id": _read(_BOOT), "pid_namespace": _namespace(), "start_ticks": _start_ticks()}


def _start_ticks() -> int | None:
    # The program's name stands in brackets and may hold anything; the start is the 20th field after it.
    fields = (_read(Path("/proc/self/stat")) or "").rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 else None


def _namespace() -> str | None:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def write_manifest(folder: Path, manifest: dict[str, Any]) -> Path:
    """Write `manifest` to folder whole (0600 in a 0700 folder) and keep the latest 64.

    Raises:
        OSError: the folder cannot be written.
    """
    # Of the manifest and not of now, so that one process's manifest, written again, stays one file.
    stamp = datetime.fromisoformat(manifest["created_utc"]).strftime("%Y%m%dT%H%M%S")
    path = folder / f"{stamp}_{manifest['hostname']}_p{manifest['pid']}.json"
    write_whole(path, json.dumps(manifest, indent=2))
    for old in sorted(folder.glob("*.json"))[:-_KEPT]:
        old.unlink(missing_ok=True)
    return path
