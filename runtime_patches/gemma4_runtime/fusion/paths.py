"""Which path an op took: ours, or SGLang's own and why.

Counted where Python runs: a CUDA graph counts when it is captured and not when it is replayed; what torch.compile
traces counts where the compiled graph runs our op, and SGLang's own lines in it do not count. A path that is new is
written to this process's guard manifest, where `gemma4-triage doctor` finds it; the counts are in /server_info.
"""

from __future__ import annotations

import torch

from gemma4_runtime.session import Session

FUSED = "fused"


class Paths:
    """Counts by op id and path; a path is FUSED or the reason why SGLang's own was taken."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = {}

    def took(self, op: str, path: str = FUSED) -> None:
        if torch.compiler.is_compiling():
            return
        counts = self._counts.setdefault(op, {})
        counts[path] = counts.get(path, 0) + 1
        if counts[path] == 1:
            Session.note_path(op, path)

    def document(self) -> dict[str, dict[str, int]]:
        return {op: dict(counts) for op, counts in self._counts.items()}


PATHS = Paths()
