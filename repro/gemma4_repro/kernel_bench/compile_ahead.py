"""Compiles the torch.compile arm of all cells before any is timed, in processes beside each other. Imports no torch.

One shape takes Inductor many seconds on one core, most of them Triton's compiler: its configurations are compiled at
the same time and timed one at a time. What is compiled lies in one folder, from which the measuring process loads it.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from gemma4_repro.engine.parent_death import die_with_parent
from gemma4_repro.kernel_bench.plan import PlannedCell
from gemma4_repro.marked_lines import last_error, marked

_COMMAND = (sys.executable, "-m", "gemma4_repro.kernel_bench.compile_worker")
# Each holds a context on the device and the inputs of a cell.
_MOST_WORKERS = 14
_SPARE_CORES = 2
# (op, model's id, tokens)
Key = tuple[str, str, int]


@dataclass
class Ahead:
    """missing: why a cell has no compiled code. cached: cells that an earlier run had compiled."""

    compiled: set[Key] = field(default_factory=set)
    missing: dict[Key, str] = field(default_factory=dict)
    cached: int = 0
    workers: int = 0
    took_s: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        return {
            "compiled": len(self.compiled),
            "of": len(self.compiled) + len(self.missing),
            "cached": self.cached,
            "workers": self.workers,
            "took_s": self.took_s,
        }


def compiler_environment(folder: Path) -> dict[str, str]:
    """Return the environment of processes that compile, or load what others have. One thread each: there are several.

    Dynamo is on, whatever the user's environment says: off, the arm would be eager under another name.
    """
    settings = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "TORCHDYNAMO_DISABLE": "0"}
    return settings | {"TORCHINDUCTOR_CACHE_DIR": str(folder)}


def compile_ahead(
    cells: Sequence[PlannedCell],
    folder: Path,
    limit_s: float,
    say: Callable[[str], None],
    device: str = "cuda",
    command: Sequence[str] = _COMMAND,
) -> Ahead:
    """Cells in their order, as far as `limit_s` goes; each worker takes every n-th."""
    begin, said = time.monotonic(), queue.SimpleQueue[dict[str, Any]]()
    ahead = Ahead(workers=max(1, min(len(cells), (os.cpu_count() or 1) - _SPARE_CORES, _MOST_WORKERS)))
    shares = [cells[number :: ahead.workers] for number in range(ahead.workers)]
    say(f"compiling {len(cells)} cells in {ahead.workers} processes")
    workers: list[_Worker] = []
    with ExitStack() as stack:
        try:
            for share in shares:
                errors = stack.enter_context(tempfile.TemporaryFile("w+"))
                workers.append(_Worker(share, folder, device, command, said, errors))
            while any(worker.alive for worker in workers) and (left := begin + limit_s - time.monotonic()) > 0:
                with suppress(queue.Empty):
                    _take(ahead, said.get(timeout=min(0.5, left)))
        finally:
            ends = [worker.end() for worker in workers]
    while not said.empty():
        _take(ahead, said.get())
    ahead.took_s = round(time.monotonic() - begin, 1)
    for share, why in zip(shares, ends, strict=True):
        for op, model, tokens in share:
            key = (op, model.id, tokens)
            if key not in ahead.compiled:
                ahead.missing.setdefault(key, why or f"not compiled in the {limit_s:.0f} s for it")
    say(f"compiled {len(ahead.compiled)} of {len(cells)} cells in {ahead.took_s:.0f} s")
    return ahead


def _take(ahead: Ahead, result: dict[str, Any]) -> None:
    key = (result["op"], result["model"], result["tokens"])
    if result["why"]:
        ahead.missing[key] = result["why"]
    else:
        ahead.compiled.add(key)
        ahead.cached += result["cached"]


class _Worker:
    """A process, and a thread that passes on what it says."""

    def __init__(
        self,
        cells: Sequence[PlannedCell],
        folder: Path,
        device: str,
        command: Sequence[str],
        said: queue.SimpleQueue[dict[str, Any]],
        errors: IO[str],
    ) -> None:
        parent, self._errors = os.getpid(), errors
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | compiler_environment(folder),
            preexec_fn=lambda: die_with_parent(parent),
        )
        task = {"device": device, "turn": str(folder / "device_turn"), "cells": list(cells)}
        self._thread = threading.Thread(target=self._pass_on, args=(json.dumps(task), said), daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def end(self) -> str:
        """Say why the process ended before its work, or empty if it did not."""
        late = self._process.poll() is None
        self._process.kill()
        code = self._process.wait()
        self._thread.join()
        self._errors.seek(0)
        last_words = last_error(self._errors.read()[-2000:])
        return "" if late or code == 0 else f"the compiling process ended with {code}: {last_words}"

    def _pass_on(self, task: str, said: queue.SimpleQueue[dict[str, Any]]) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(task)
            self._process.stdin.close()
        except BrokenPipeError:
            return
        for line in self._process.stdout:
            if (result := marked(line)) is not None:
                said.put(result)
