"""Writes down each of the scheduler's steps: who is in it, who has finished before it, and how full both KV pools are.

Runs inside the engine's processes; harness, not part of the patched runtime. Two JSON lines per step, so that a process
that dies leaves the step in which it died:

| line   | holds                                                                                                |
|--------|------------------------------------------------------------------------------------------------------|
| begins | step, begins (seconds since the epoch), mode, requests ([prompt, slot] each), finished (prompts)     |
| ended  | step, full, swa: shares that SGLang itself counts; raised: the exception's type if one left the step |

The tokens of each finished answer are in a file of their own, since they are text of the load: [prompt, tokens] a line.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemma4_repro.engine.serving import prompt_of
from gemma4_repro.recorders.recorder import Recorder
from gemma4_runtime.release.requests import held
from gemma4_runtime.targets import dotted_path

USAGE_NAME, FINISHED_NAME = "usage.jsonl", "finished.jsonl"


class UsageRecorder(Recorder):
    """An around-hook on the scheduler's `run_batch`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, Any] = {}
        self._step = 0
        self._running: dict[int, Any] = {}

    def register(self, release: str) -> None:
        """Register with SGLang; call it before the engine loads its plugins. The scheduler inherits it by fork."""
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register(dotted_path(release, "scheduler.run_batch"), self, HookType.AROUND)

    def __call__(self, original: Any, scheduler: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        self._begin(batch)
        try:
            result = original(scheduler, batch, *args, **kwargs)
        except Exception as error:
            self._end(scheduler, {"raised": type(error).__name__})
            raise
        self._end(scheduler, {})
        return result

    def _begin(self, batch: Any) -> None:
        self._step += 1
        self._running |= {prompt_of(request.rid): request for request in batch.reqs}
        finished = {prompt: request for prompt, request in self._running.items() if request.finished()}
        for prompt, request in finished.items():
            del self._running[prompt]
            self._write(FINISHED_NAME, [prompt, list(request.output_ids)])
        self._write(
            USAGE_NAME,
            {
                "step": self._step,
                "begins": time.time(),
                "mode": batch.forward_mode.name,
                "requests": [[prompt_of(request.rid), held(request).req_pool_idx] for request in batch.reqs],
                "finished": list(finished),
            },
        )

    def _end(self, scheduler: Any, more: dict[str, Any]) -> None:
        stats = scheduler.pool_stats_observer.get_pool_stats()
        shares = {"full": round(stats.full_token_usage, 6), "swa": round(stats.swa_token_usage or 0.0, 6)}
        self._write(USAGE_NAME, {"step": self._step, **shares, **more})

    def _write(self, name: str, line: Any) -> None:
        if name not in self._files:
            # Opened here, in the scheduler: the file position is not to be shared with the parent.
            self._files[name] = (self._folder / name).open("a", encoding="utf-8", buffering=1)
        self._files[name].write(json.dumps(line) + "\n")


@dataclass(frozen=True)
class Step:
    """The last step that a run began.

    Args:
        number: counted from 1.
        began: seconds since the epoch.
        mode: the forward mode with which it began, such as EXTEND or DECODE.
        slots: for each prompt in it, its row of the request pool.
        ended: whether the step came to its end.
        raised: the type of the exception that left it; None if there was none, or if nobody could write it down.
    """

    number: int
    began: float
    mode: str
    slots: dict[int, int]
    ended: bool
    raised: str | None


@dataclass(frozen=True)
class Usage:
    """How full the pools were, and how far the run came.

    Args:
        full: shares (0 to 1) of the full pool that live requests held after each step, or when it failed.
        swa: the same of the SWA pool.
        last: the last step that began; None if none did.
        finished: the prompts whose answers had been finished before that step.
    """

    full: tuple[float, ...]
    swa: tuple[float, ...]
    last: Step | None = None
    finished: tuple[int, ...] = ()

    @property
    def full_peak(self) -> float:
        return max(self.full, default=0.0)

    @property
    def swa_peak(self) -> float:
        return max(self.swa, default=0.0)


def read_usage(path: Path) -> Usage:
    """Return what a run left; empty if it left nothing. A last line without its end is dropped."""
    lines = _lines(path)
    begun, ended = [line for line in lines if "begins" in line], [line for line in lines if "swa" in line]
    finished = sorted(prompt for line in begun for prompt in line["finished"])
    return Usage(
        tuple(line["full"] for line in ended),
        tuple(line["swa"] for line in ended),
        _last_step(begun[-1], ended) if begun else None,
        tuple(finished),
    )


def read_finished_answers(path: Path) -> dict[int, tuple[int, ...]]:
    """Return the tokens of each answer that the scheduler finished, the last ones perhaps not, by prompt."""
    return {prompt: tuple(tokens) for prompt, tokens in _lines(path)}


def _lines(path: Path) -> list[Any]:
    try:
        text = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text if line.endswith("\n")]


def _last_step(begun: dict[str, Any], ended: list[dict[str, Any]]) -> Step:
    end = next((line for line in reversed(ended) if line["step"] == begun["step"]), None)
    raised = end.get("raised") if end else None
    slots = dict(begun["requests"])
    return Step(begun["step"], begun["begins"], begun["mode"], slots, end is not None and raised is None, raised)
