"""A result file that a command writes: refused if it exists, written whole, announced."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from gemma4_triage.errors import EnvironmentCannot, UsageMistake
from gemma4_triage.terminal import JSON_SCHEMA_VERSION, say


def refuse_existing(path: Path | None, force: bool) -> None:
    """Run before the work starts.

    Raises UsageMistake if `path` exists without `force`, is something else than a file, or its folder is not there, and
    EnvironmentCannot if that folder takes no file.
    """
    if path is None:
        return
    # Renaming a file over a device, as root can, would take /dev/null from the machine.
    if os.path.lexists(path) and not os.path.isfile(path):
        raise UsageMistake(f"{path} is no file", "name a file in a folder that exists")
    if os.path.lexists(path) and not force:
        raise UsageMistake(f"{path} exists", "name another file, or overwrite it with --force")
    if not os.path.isdir(path.absolute().parent):
        raise UsageMistake(f"{path} cannot be a file here", "name a file in a folder that exists")
    try:
        with suppress(FileNotFoundError):
            # A name that is too long for the file system.
            path.lstat()
        # Tried, because root may write where the permissions say otherwise, and nobody may to /proc.
        with TemporaryFile(dir=path.absolute().parent):
            pass
    except OSError as error:
        raise _unwritable(path, error) from error


def refuse_other_than_svg(path: Path | None) -> None:
    """Raises UsageMistake for a picture whose name says that it is of another kind."""
    if path is not None and path.suffix.lower() != ".svg":
        raise UsageMistake(f"{path} is no .svg, and SVG is what is drawn", f"name {path.stem}.svg")


def write_output(path: Path, kind: str, fields: dict[str, Any]) -> None:
    """Write one JSON document, as `emit_json` prints it. Raises EnvironmentCannot."""
    document = {"schema_version": JSON_SCHEMA_VERSION, "kind": kind} | fields
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write under a temporary name first: a full disk leaves no half file. Raises EnvironmentCannot."""
    temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise _unwritable(path, error) from error
    say(f"Wrote {path}")


def _unwritable(path: Path, error: OSError) -> EnvironmentCannot:
    return EnvironmentCannot(f"{path} cannot be written: {error.strerror}", "name another file")
