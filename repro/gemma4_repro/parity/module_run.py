"""A module of ours in a process of its own beside the engine's, which writes files.

Imports neither torch nor transformers.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from gemma4_repro.engine.log_exceptions import last_lines
from gemma4_repro.errors import EnvironmentLacks

LIMIT_S = 180.0
_TICK_S = 0.2


class ModuleRun:
    """`python -m module PARENT_PID FOLDER`, started on entering; on leaving, no process of it is left."""

    def __init__(self, module: str, folder: Path, log_name: str, environment: Mapping[str, str], failed: str) -> None:
        """failed: what it comes to if it does not end well, for the error."""
        self._module, self._folder, self._log = module, folder, folder / log_name
        self._environment, self._failed = dict(environment), failed
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, str(os.getpid()), str(self._folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        return self

    def __exit__(self, *exception: object) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()

    def wait(self, tick: Callable[[], Any] = lambda: None) -> None:
        """Wait until it has ended well.

        Raises:
            EnvironmentLacks: it failed or took too long; the text holds the end of its log.
        """
        assert self._process is not None, "the process is used outside its `with` block"
        limit = time.monotonic() + LIMIT_S
        while self._process.poll() is None and time.monotonic() < limit:
            time.sleep(_TICK_S)
            tick()
        if self._process.returncode != 0:
            tail = "\n".join(f"  {line}" for line in last_lines(self._log, 8))
            raise EnvironmentLacks(f"{self._failed}; its log ends with:\n{tail}", f"the whole log: {self._log}")
