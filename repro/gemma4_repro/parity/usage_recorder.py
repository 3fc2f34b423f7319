"""Writes down how full both KV pools are after each of the scheduler's steps, as SGLang itself counts it.

Runs inside the engine's processes; harness, not part of the patched runtime.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemma4_runtime.targets import dotted_path

USAGE_NAME = "usage.jsonl"


class UsageRecorder:
    """An after-hook on the scheduler's `run_batch`. One JSON line per step: mode, requests, full, swa."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: Any = None

    def register(self, release: str) -> None:
        """Register with SGLang; call it before the engine loads its plugins. The scheduler inherits it by fork."""
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register(dotted_path(release, "scheduler.run_batch"), self, HookType.AFTER)

    def __call__(self, result: Any, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> None:
        if self._file is None:
            # Opened here, in the scheduler: the file position is not to be shared with the parent.
            self._file = self._path.open("a", encoding="utf-8", buffering=1)
        stats = scheduler.pool_stats_observer.get_pool_stats()
        line = {
            "mode": batch.forward_mode.name,
            "requests": len(batch.reqs),
            "full": round(stats.full_token_usage, 6),
            "swa": round(stats.swa_token_usage or 0.0, 6),
        }
        self._file.write(json.dumps(line) + "\n")


@dataclass(frozen=True)
class Usage:
    """Shares of the pools (0 to 1) that live requests held after each step."""

    full: tuple[float, ...]
    swa: tuple[float, ...]

    @property
    def full_peak(self) -> float:
        return max(self.full, default=0.0)

    @property
    def swa_peak(self) -> float:
        return max(self.swa, default=0.0)


def read_usage(path: Path) -> Usage:
    """What a run left; empty if it left nothing. A last line without its end is dropped."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        lines = []
    steps = [json.loads(line) for line in lines if line.endswith("\n")]
    return Usage(tuple(step["full"] for step in steps), tuple(step["swa"] for step in steps))
