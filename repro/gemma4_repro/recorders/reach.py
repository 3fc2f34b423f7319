"""Writes down which of SGLang's functions a run came to: those that the compared patches hook.

Runs inside the engine's processes; harness, not part of the patched runtime. A hook that hides what it wraps hides it
from this recorder too; such patches count their own paths (see `own_paths` of a Patch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gemma4_repro.recorders.recorder import Recorder
from gemma4_runtime.targets import dotted_path

REACHED_NAME = "reached.txt"


class ReachRecorder(Recorder):
    """A before-hook on each target. One line per target and process, at its first call."""

    def __init__(self, path: Path, targets: Iterable[str]) -> None:
        self._path = path
        self._targets = tuple(targets)
        self._seen: set[str] = set()

    def register(self, release: str) -> None:
        """Register with SGLang; call it before the engine loads its plugins. Its processes inherit it by fork."""
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        for target in self._targets:
            HookRegistry.register(dotted_path(release, target), self._hook(target), HookType.BEFORE)

    def _hook(self, target: str) -> Callable[..., None]:
        def before(*args: Any, **kwargs: Any) -> None:
            if target not in self._seen:
                self._seen.add(target)
                # Opened each time: the file position is not to be shared between processes.
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(f"{target}\n")

        return before


def read_reached(path: Path) -> frozenset[str]:
    """Target keys; empty if the run came to none of them."""
    try:
        return frozenset(path.read_text(encoding="utf-8").split())
    except FileNotFoundError:
        return frozenset()
