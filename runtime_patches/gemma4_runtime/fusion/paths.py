"""Which path an op took: ours, or SGLang's own and why.

Counted where Python runs: a CUDA graph counts when it is captured and not when it is replayed; what torch.compile
traces counts where the compiled graph runs our op, and SGLang's own lines in it do not count. A path that is new is
written to this process's guard manifest, where `gemma4-triage doctor` finds it; the counts are in /server_info.
"""

from __future__ import annotations

from typing import Any

import torch

from gemma4_runtime import current

FUSED = "fused"
REFERENCE = "reference"
"""The torch lines beside a kernel of ours: what runs on a CPU in the kernel's place, and in the same wiring."""


class Paths:
    """Counts by op id and path; a path is FUSED, REFERENCE, or the reason why SGLang's own was taken."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {}

    def took(self, op: str, path: str = FUSED) -> None:
        """Count a call that took this path."""
        if not torch.compiler.is_compiling():
            self._count(op, path)

    def ran(self, op: str, rows: torch.Tensor) -> None:
        """Count a call of an op of ours on these rows: its kernel on a GPU, its reference on a CPU."""
        if not torch.compiler.is_compiling():
            self._count(op, FUSED if rows.is_cuda else REFERENCE)

    def _count(self, op: str, path: str) -> None:
        counts = self._counts.setdefault(op, {})
        counts[path] = counts.get(path, 0) + 1
        if counts[path] == 1:
            current.note_path(op, path)

    def document(self) -> dict[str, dict[str, int]]:
        return {op: dict(counts) for op, counts in self._counts.items()}


PATHS = Paths()


KEY = "gemma4_triage_paths"
"""Of an internal state in /server_info."""


def after_internal_state(result: Any, scheduler: Any, *args: Any, **kwargs: Any) -> None:
    """Run after `Scheduler.get_internal_state`: show in /server_info which paths the ops took."""
    result.internal_state[KEY] = PATHS.document()
