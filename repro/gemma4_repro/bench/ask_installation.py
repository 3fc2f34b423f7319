"""Runs installation.py beside the servers, and reads what it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from gemma4_repro.bench.arms import ARMS
from gemma4_repro.bench.server_environment import server_environment
from gemma4_repro.engine.parent_death import die_with_parent

# What the line with the answer begins with: libraries print on stdout too.
MARK = "gemma4-bench-installation: "
_LIMIT_S = 180
_NOTHING: dict[str, Any] = {"versions": {}, "gpu": None, "identity": None}


class InstallationQuestion:
    """A context manager around the process: asked on entering, answered by `answer`."""

    def __init__(self, folder: Path, host_engine: bool) -> None:
        (off,) = [arm for arm in ARMS if arm.identity]
        environment = server_environment(off, folder, host_engine)
        # The host engine's leaves are patches as well; what is asked is whether the arm's own words attach anything.
        for name in ("GEMMA4_TRIAGE_HOST_ENGINE", "GEMMA4_TRIAGE_PATCHES"):
            environment.pop(name, None)
        self._log = folder / "installation.log"
        self._environment = environment

    def __enter__(self) -> InstallationQuestion:
        parent = os.getpid()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gemma4_repro.bench.installation"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                preexec_fn=lambda: die_with_parent(parent),
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()

    def answer(self) -> dict[str, Any]:
        """versions, gpu and identity; each empty or None if the process failed, and `failure` says with what."""
        try:
            self._process.wait(_LIMIT_S)
        except subprocess.TimeoutExpired:
            return _NOTHING | {"failure": f"no answer in {_LIMIT_S} s"}
        said = self._log.read_text(errors="replace").splitlines()
        lines = [line for line in said if line.startswith(MARK)]
        if not lines:
            return _NOTHING | {"failure": said[-1] if said else f"exit code {self._process.returncode}"}
        return json.loads(lines[-1].removeprefix(MARK)) | {"failure": ""}
