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


def build_manifest(
    asked: list[dict[str, Any]], settings: dict[str, Any], versions: dict[str, str], gpu: dict[str, Any] | None
) -> dict[str, Any]:
    """Everything about this process's guards as one JSON object."""
    return {
        "schema_version": SCHEMA_VERSION,
        "created_utc": datetime.now(UTC).isoformat(timespec="seconds"),
        "hostname": socket.gethostname(),
        "pid": os.getpid(),
        "command": redact_launch_args(sys.argv),
        "settings": settings,
        "patches": asked,
        "verified": False,
        "versions": versions,
        "gpu": gpu,
    }


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
