"""Writes down when each of the scheduler's steps begins, so that a dump's time tells its step.

Runs inside the engine's processes; harness, not part of the patched runtime.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from pathlib import Path
from typing import Any

from gemma4_repro.recorders.recorder import Recorder
from gemma4_runtime.targets import dotted_path

STEPS_NAME = "steps.txt"


class StepRecorder(Recorder):
    """A before-hook on the scheduler's `run_batch`. One line per step: time.time() in seconds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: Any = None

    def register(self, release: str) -> None:
        """Register with SGLang; call it before the engine loads its plugins. The scheduler inherits it by fork."""
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register(dotted_path(release, "scheduler.run_batch"), self, HookType.BEFORE)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if self._file is None:
            # Opened here, in the scheduler: the file position is not to be shared with the parent.
            self._file = self._path.open("a", encoding="utf-8", buffering=1)
        self._file.write(f"{time.time():.6f}\n")


def read_step_times(path: Path) -> list[float]:
    """Return when each step began, in order; empty if there was none. A last line without its end is dropped."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [float(line) for line in lines if line.endswith("\n")]


def step_at(step_times: list[float], moment: float) -> int:
    """Return the step, counted from 1, that had begun last at `moment`; 0 before the first."""
    return bisect_right(step_times, moment)
