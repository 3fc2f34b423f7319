"""Where a run's files go: <state>/runs/<utc>_<scenario>/<arm>/. Private to the user, like dumps."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from gemma4_dumps.store import state_folder
from gemma4_repro.errors import OutputRefused, OutputUnwritable

VERDICT_NAME = "verdict.json"
NEEDED_BYTES = 64 * 1024**2
FREE_SPACE = "free some space or name another --output"


def runs_root() -> Path:
    """Say where runs go unless told otherwise: under the platform's user state directory."""
    return state_folder() / "runs"


def prepare_run_folder(scenario_id: str, arms: tuple[str, ...], output: Path | None, overwrite: bool) -> Path:
    """Make the run's folder and check that it can be written.

    Raises:
        OutputRefused: `output` is a file, or is not empty and `overwrite` is false.
        OutputUnwritable: it cannot be made or written, or its disk is full.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%fZ")
    folder = output.expanduser() if output is not None else runs_root() / f"{stamp}_{scenario_id}"
    with writing(folder):
        if os.path.lexists(folder) and not folder.is_dir():
            raise OutputRefused(f"{folder} is not a directory", "--output takes a directory")
        if folder.is_dir() and any(folder.iterdir()):
            if not overwrite:
                raise OutputRefused(f"{folder} is not empty", "name another --output, or overwrite with --force")
            _remove_previous(folder, arms)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _require_space(folder)
        for arm in arms:
            (folder / arm).mkdir(mode=0o700)
            (folder / arm / "dumps").mkdir(mode=0o700)
    return folder.resolve()


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system says about writing below `path` into OutputUnwritable, in words."""
    try:
        yield
    except OSError as error:
        raise OutputUnwritable(f"{path} cannot be written: {error.strerror}", _hint(error.errno)) from error


def disk_is_full(folder: Path) -> bool:
    """Say whether fewer than 1 MiB are free where `folder` lies."""
    try:
        return shutil.disk_usage(folder).free < 1024**2
    except OSError:
        return False


def _require_space(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise OutputUnwritable(
            f"{folder} has {free // 1024**2} MiB left on its disk and a run needs {NEEDED_BYTES // 1024**2} MiB",
            FREE_SPACE,
        )


def _remove_previous(folder: Path, arms: tuple[str, ...]) -> None:
    """Remove what this command writes, of the arms that run now: the folder may hold other things too."""
    for arm in arms:
        if (folder / arm).is_symlink():
            (folder / arm).unlink()
        elif (folder / arm).exists():
            shutil.rmtree(folder / arm)
    (folder / VERDICT_NAME).unlink(missing_ok=True)


def _hint(number: int | None) -> str:
    if number == errno.ENOSPC:
        return f"the disk is full: {FREE_SPACE}"
    return "name a directory that you may write with --output"
