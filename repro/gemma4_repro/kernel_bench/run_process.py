"""Runs process.py, which has torch and SGLang, and collects what it prints; starts it anew where it ended too early."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gemma4_dumps.wording import number_of
from gemma4_repro.errors import EnvironmentLacks
from gemma4_repro.kernel_bench.compile_ahead import Ahead, Key, compile_ahead, compiler_environment
from gemma4_repro.kernel_bench.marked_lines import last_error, marked
from gemma4_repro.kernel_bench.plan import KernelPlan
from gemma4_repro.parent_death import die_with_parent

# The process looks at the clock between cells. One that has said nothing for so long, or is that far past the end, is
# ended.
_SILENCE_S, _GRACE_S = 150.0, 60.0
_COMMAND = (sys.executable, "-m", "gemma4_repro.kernel_bench.process")
# Of the run's time: what is not compiled by then is named as lost, and the other arms are measured.
_COMPILING_SHARE = 0.4
Say = Callable[[str], None]


@dataclass
class Measured:
    """What came back. about: versions and GPU. partial: why it is not all, or empty. compiling: see Ahead.as_dict, None
    without the arm."""

    about: dict[str, Any] = field(default_factory=dict)
    compiling: dict[str, Any] | None = None
    took_s: float = 0.0
    samples: list[dict[str, Any]] = field(default_factory=list)
    launches: list[dict[str, Any]] = field(default_factory=list)
    lost: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[dict[str, Any]] = field(default_factory=list)
    partial: str = ""
    interrupted: bool = False

    def take(self, result: dict[str, Any]) -> None:
        """Add one result of the process."""
        kind = result.pop("kind")
        if kind == "about":
            self.about = result
        elif kind == "partial":
            self.partial = result["why"]
        elif kind in ("samples", "launches", "lost", "wrong"):
            getattr(self, kind).append(result)


@dataclass
class _Task:
    """What the next process is to do. first: a cell's number. left_out: (op, model, arm) that lost the device.
    not_compiled: (op, model, tokens)."""

    first: int = 0
    not_compiled: list[Key] = field(default_factory=list)
    left_out: set[tuple[str, str, str]] = field(default_factory=set)

    def text(self, plan: KernelPlan, measured: Measured) -> str:
        counted = sorted({(entry["op"], entry["model"]) for entry in measured.launches})
        fields = {"first": self.first, "left_out": sorted(self.left_out), "counted": counted}
        return json.dumps(fields | {"not_compiled": self.not_compiled, "plan": plan.as_dict()})


@dataclass
class _Ended:
    """How a process ended. cell: the last one that it began. device_lost: what it said of the arm that did it."""

    code: int = 0
    last_words: str = ""
    tail: str = ""
    cell: dict[str, Any] | None = None
    device_lost: dict[str, Any] | None = None


def run_plan(
    plan: KernelPlan,
    say: Say,
    command: Sequence[str] = _COMMAND,
    compile_cache: Path | None = None,
    compiler: Callable[..., Ahead] = compile_ahead,
) -> Measured:
    """Measure; progress goes to `say`, a line per cell. Ctrl-C ends it with what there is.

    An arm that takes the device with it is lost for this op and model, and its cell is measured again without it. A
    process that ends or hangs for another reason loses the cell that it was at; the next one goes on behind it.

    Args:
        compile_cache: a folder in which compiled code of an earlier run may lie, and stays; None: a temporary one.

    Raises:
        EnvironmentLacks: nothing was measured, and no cell was begun.
    """
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (compile_cache or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        measured, task = Measured(), _Task()
        if "compile" in plan.arms:
            ahead = compiler(plan.cells(), folder, _COMPILING_SHARE * plan.limit_s, say)
            _leave_out_uncompiled(ahead, task, measured)
        _measure_cells(plan, say, command, folder, begin + plan.limit_s, task, measured)
    measured.took_s = round(time.monotonic() - begin, 1)
    return measured


def _leave_out_uncompiled(ahead: Ahead, task: _Task, measured: Measured) -> None:
    measured.compiling, task.not_compiled = ahead.as_dict(), sorted(ahead.missing)
    for (op, model, tokens), why in sorted(ahead.missing.items()):
        measured.lost.append({"op": op, "model": model, "tokens": tokens, "arm": "compile", "why": why})


def _measure_cells(
    plan: KernelPlan, say: Say, command: Sequence[str], folder: Path, end: float, task: _Task, measured: Measured
) -> None:
    ended = _Ended()
    while task.first < len(plan.cells()) and not measured.partial:
        left = end - time.monotonic()
        if left <= 0:
            measured.partial = f"out of time after {task.first} of {number_of(len(plan.cells()), 'cell')}"
            break
        text = task.text(replace(plan, limit_s=left), measured)
        ended = _run_process(command, text, left, compiler_environment(folder), measured, say)
        if measured.interrupted or ended.code == 0:
            break
        if ended.cell is None:
            measured.partial = measured.partial or f"the measuring process ended with {ended.code}: {ended.last_words}"
        else:
            _lose(ended, ended.cell, task, measured, say)
    if not (measured.interrupted or measured.samples or measured.wrong):
        raise EnvironmentLacks(
            f"nothing was measured\n{ended.tail}", "the last lines above are the measuring process's"
        )


def _lose(ended: _Ended, cell: dict[str, Any], task: _Task, measured: Measured, say: Say) -> None:
    where = {name: cell[name] for name in ("op", "model", "tokens")}
    if ended.device_lost:
        arm, why = ended.device_lost["arm"], f"{ended.device_lost['why']}; left out of this op and model from here on"
        task.first = cell["number"]
        task.left_out.add((cell["op"], cell["model"], arm))
    else:
        arm, why = "all", f"the measuring process ended with {ended.code}: {ended.last_words}"
        task.first = cell["number"] + 1
    say(f"lost: {arm} {why}")
    measured.lost.append(where | {"arm": arm, "why": why})


def _run_process(
    command: Sequence[str], task: str, limit_s: float, environment: dict[str, str], measured: Measured, say: Say
) -> _Ended:
    parent, ended = os.getpid(), _Ended()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | environment,
            preexec_fn=lambda: die_with_parent(parent),
        )
        watch = _Watch(process, limit_s)
        try:
            _converse(process, task, ended, measured, say, watch)
        except KeyboardInterrupt:
            measured.interrupted, measured.partial = True, "interrupted"
        finally:
            watch.cancel()
            process.kill()
            ended.code = process.wait()
        errors.seek(0)
        ended.tail = errors.read()[-2000:].strip()
    ended.last_words = watch.why or last_error(ended.tail)
    return ended


class _Watch:
    """Kills a process that is silent for too long, or that does not find its end. why: which of them, or empty."""

    def __init__(self, process: subprocess.Popen[str], limit_s: float) -> None:
        self._process, self._end, self.why = process, time.monotonic() + limit_s + _GRACE_S, ""
        self.heard()

    def heard(self) -> None:
        left = self._end - time.monotonic()
        if hasattr(self, "_timer"):
            self._timer.cancel()
        why = f"no result for {_SILENCE_S:.0f} s" if left > _SILENCE_S else "out of time in a cell"
        self._timer = threading.Timer(max(0.0, min(left, _SILENCE_S)), self._kill, (why,))
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        self._timer.cancel()

    def _kill(self, why: str) -> None:
        self.why = why
        self._process.kill()


def _converse(
    process: subprocess.Popen[str], task: str, ended: _Ended, measured: Measured, say: Say, watch: _Watch
) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(task)
    process.stdin.close()
    for line in process.stdout:
        result = marked(line)
        if result is None:
            continue
        watch.heard()
        if result["kind"] == "cell":
            ended.cell = result
            say(f"{result['op']}, {result['model']}, {number_of(result['tokens'], 'token')}")
        elif result["kind"] == "device-lost":
            ended.device_lost = result
        elif result["kind"] in ("lost", "wrong"):
            say(f"{result['kind']}: {result.get('arm', '')} {result.get('why') or result.get('what')}")
        measured.take(dict(result))
    process.wait()
