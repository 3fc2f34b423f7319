"""Writes down every draft of an arm. Runs inside the engine's processes; harness, not part of the patched runtime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gemma4_repro.engine.serving import prompt_of
from gemma4_repro.recorders.recorder import Recorder
from gemma4_runtime.targets import dotted_path

DRAFTS_NAME = "drafts.jsonl"


class DraftRecorder(Recorder):
    """An after-hook on the MTP worker's `draft`. One JSON line per request and round: [prompt, position, drafts]."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: Any = None

    def register(self, release: str) -> None:
        """Register with SGLang; call it before the engine loads its plugins. Workers inherit it by fork."""
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register(dotted_path(release, "mtp.draft"), self, HookType.AFTER)

    def __call__(self, result: Any, worker: Any, batch: Any) -> None:
        """Run after `draft(batch)`: result.draft_token is [requests * nodes] ids, a request's bonus token first."""
        if batch.forward_mode.is_idle():
            return
        if self._file is None:
            # Opened here, in the scheduler: the file position is not to be shared with the parent.
            self._file = self._path.open("a", encoding="utf-8", buffering=1)
        for request, nodes in zip(batch.reqs, result.draft_token.view(len(batch.reqs), -1).tolist(), strict=True):
            self._file.write(json.dumps([prompt_of(request.rid), len(request.output_ids), nodes[1:]]) + "\n")
