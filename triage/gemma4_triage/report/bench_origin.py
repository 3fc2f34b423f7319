"""Where a bench document comes from: the project's commit, and the command without this machine's paths."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

_PROJECT = "gemma4-triage"
_ROOT = Path(__file__).parents[3]
_PATHS = ("--output", "-o", "--out", "--run-folder", "--compile-cache", "--vllm-router", "--also-sglang")
_LIMIT_S = 10


def project_origin(root: Path = _ROOT) -> dict[str, str | None]:
    """version; commit, and which of "git" and "distribution" says so; None where neither does.

    Args:
        root: the folder of the checkout that this file is in, if it is in one.
    """
    installed = distribution(_PROJECT)
    commit, said_by = _described(root), "git"
    if commit is None:
        commit, said_by = _installed_commit(installed.read_text("direct_url.json")), "distribution"
    return {"version": installed.version, "commit": commit, "commit_from": said_by if commit else None}


def portable_command(words: Sequence[str]) -> str:
    """`gemma4-triage` with these arguments as a shell line, whose paths are `portable_name`s."""
    return shlex.join([_PROJECT, *_portable(words)])


def portable_name(path: Path) -> str:
    """Relative to the working directory if it is below that, else its last name: what may be committed and repeated."""
    absolute = path.absolute()
    return str(absolute.relative_to(Path.cwd())) if absolute.is_relative_to(Path.cwd()) else absolute.name


def _described(root: Path) -> str | None:
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        # No git, or one that hangs: the measurement is worth more than its commit.
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _installed_commit(direct_url: str | None) -> str | None:
    """Return the commit in direct_url.json (PEP 610), which installers write for what does not come from an index."""
    try:
        found: Any = json.loads(direct_url or "{}")
        return str(found["vcs_info"]["commit_id"])
    except (ValueError, KeyError, TypeError):
        return None


def _portable(words: Sequence[str]) -> Iterator[str]:
    before = ""
    for word in words:
        option, equals, value = word.partition("=")
        if before in _PATHS:
            yield portable_name(Path(word))
        elif equals and option in _PATHS:
            yield f"{option}={portable_name(Path(value))}"
        else:
            yield word
        before = word
