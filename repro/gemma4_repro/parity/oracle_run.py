"""Starts the oracle beside the engine's processes and reads what it says. Imports neither torch nor transformers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from gemma4_repro.errors import EnvironmentLacks
from gemma4_repro.log_exceptions import last_lines
from gemma4_repro.parity.oracle_files import ARRAYS_NAME, LOG_NAME, REQUEST_NAME, OracleRequest
from gemma4_repro.parity.tracks import Oracle, read_oracle
from gemma4_repro.parity.window_evidence import tried_windows

LIMIT_S = 180.0
_TICK_S = 0.2


class OracleRun:
    """A context manager around the oracle's process, which is started at once. On leaving, no process of it is left."""

    def __init__(
        self,
        folder: Path,
        model_path: Path,
        prompts: list[list[int]],
        new_tokens: list[int],
        environment: Mapping[str, str],
    ) -> None:
        self._folder, self._environment = folder, dict(environment)
        config = json.loads((model_path / "config.json").read_text(encoding="utf-8"))["text_config"]
        self._window, self._layer_types = int(config["sliding_window"]), config["layer_types"]
        self.vocabulary_size = int(config["vocab_size"])
        self._lengths = [len(prompt) for prompt in prompts]
        self._request = OracleRequest(
            model_path=str(model_path),
            prompts=prompts,
            new_tokens=new_tokens,
            windows=list(tried_windows(self._window)),
        )
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        (self._folder / REQUEST_NAME).write_text(self._request.model_dump_json(), encoding="utf-8")
        module = "gemma4_repro.parity.oracle_process"
        with (self._folder / LOG_NAME).open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(os.getpid()), str(self._folder)],
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

    def remove_files(self) -> None:
        """The request with its prompts, and the answer. The log stays."""
        for name in (REQUEST_NAME, ARRAYS_NAME):
            (self._folder / name).unlink(missing_ok=True)

    def wait(self, tick: Callable[[], Any] = lambda: None) -> Oracle:
        """What it says, once it has ended.

        Raises:
            EnvironmentLacks: it failed or took too long; the text holds the end of its log.
        """
        assert self._process is not None, "the oracle is used outside its `with` block"
        limit = time.monotonic() + LIMIT_S
        while self._process.poll() is None and time.monotonic() < limit:
            time.sleep(_TICK_S)
            tick()
        if self._process.returncode != 0:
            tail = "\n".join(f"  {line}" for line in last_lines(self._folder / LOG_NAME, 8))
            raise EnvironmentLacks(
                f"transformers, which the engine is compared with, said nothing; its log ends with:\n{tail}",
                f"the whole log: {self._folder / LOG_NAME}",
            )
        return read_oracle(self._folder, self._lengths, self._request.windows, self._window, self._layer_types)
