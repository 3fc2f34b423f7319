"""The options of every verb that reads dumps, and the store that they name."""

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemma4_triage.errors import UsageMistake

if TYPE_CHECKING:
    from gemma4_dumps.store import DumpStore

ONE_DUMP = 'A short id or 4 letters of it or more, a name or the beginning of one, a path, or "latest".'
SEVERAL_DUMPS = 'Short ids or 4 letters of them or more, names or beginnings of names, paths, or "latest".'

DIRECTORY_VARIABLE = "SGLANG_TRTLLM_MHA_DEBUG_DIR"


def _directory(text: str) -> Path:
    return Path(text).expanduser()


Directory = Annotated[
    Path | None,
    typer.Option(
        "--dir",
        parser=_directory,
        metavar="DIR",
        help=f"Where the dumps are. Default: {DIRECTORY_VARIABLE}, else the user state directory.",
    ),
]


def open_store(directory: Path | None) -> "DumpStore":
    """Open the store that --dir, the environment or the default names. Raises UsageMistake if --dir is no directory."""
    from gemma4_dumps.store import DumpStore

    if directory is not None:
        if not os.path.isdir(directory):
            from gemma4_dumps.unpacked import is_zip

            hint = "--dir takes the directory that holds the dumps"
            if is_zip(directory):
                hint = f"to read all that is in it: gemma4-triage diagnose {shlex.quote(str(directory))}"
            raise UsageMistake(f"{directory} is not a directory", hint)
        return DumpStore(directory)
    # Unset and empty mean the same to a shell user.
    return DumpStore(os.environ.get(DIRECTORY_VARIABLE) or None)
