"""Starts the oracle beside the engine's processes and reads what it says. Imports neither torch nor transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from gemma4_repro.parity.load import Load
from gemma4_repro.parity.module_run import ModuleRun
from gemma4_repro.parity.oracle_files import ARRAYS_NAME, LOG_NAME, REQUEST_NAME, OracleRequest
from gemma4_repro.parity.tracks import Oracle, read_oracle
from gemma4_repro.parity.window_evidence import tried_windows


class OracleRun:
    """A context manager around the oracle's process, which is started at once. On leaving, no process of it is left."""

    def __init__(self, folder: Path, model_path: Path, load: Load, environment: Mapping[str, str]) -> None:
        self._folder = folder
        config = json.loads((model_path / "config.json").read_text(encoding="utf-8"))["text_config"]
        self._window, self._layer_types = int(config["sliding_window"]), config["layer_types"]
        self.vocabulary_size = int(config["vocab_size"])
        self._lengths = [len(prompt) for prompt in load.prompts]
        self._request = OracleRequest(
            model_path=str(model_path),
            prompts=load.prompts,
            new_tokens=load.new_tokens,
            # A row's experiment costs a copy of its sequence, and pictures make long ones.
            windows=list(tried_windows(self._window)) if load.tries_widths else [],
            pictures=load.pictures,
        )
        failed = "transformers, which the engine is compared with, said nothing"
        self._run = ModuleRun("gemma4_repro.parity.oracle_process", folder, LOG_NAME, environment, failed)

    def __enter__(self) -> Self:
        (self._folder / REQUEST_NAME).write_text(self._request.model_dump_json(), encoding="utf-8")
        self._run.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._run.__exit__(*exception)

    def remove_files(self) -> None:
        """Remove the request with its prompts, and the answer. The log stays."""
        for name in (REQUEST_NAME, ARRAYS_NAME):
            (self._folder / name).unlink(missing_ok=True)

    def wait(self, tick: Callable[[], Any] = lambda: None) -> Oracle:
        """Say what it says, once it has ended. Raises EnvironmentLacks."""
        self._run.wait(tick)
        return read_oracle(self._folder, self._lengths, self._request.windows, self._window, self._layer_types)
