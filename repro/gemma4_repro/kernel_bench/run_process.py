"""Runs process.py, which has torch and SGLang, and collects what it prints; starts it anew where it ended too early."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gemma4_dumps.wording import number_of
from gemma4_repro.kernel_bench.compile_ahead import Ahead, Key, compile_ahead, compiler_environment
from gemma4_repro.kernel_bench.plan import KernelPlan
from gemma4_repro.measuring_process import Ended, Say, run_measuring

_COMMAND = (sys.executable, "-m", "gemma4_repro.kernel_bench.process")
# Of the run's time: what is not compiled by then is named as lost, and the other arms are measured.
_COMPILING_SHARE = 0.4


@dataclass
class Measured:
    """What came back.

    Attributes:
        about: versions and GPU.
        partial: why it is not all, or empty.
        compiling: see Ahead.as_dict, None without the arm.
    """

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
    """What the next process is to do.

    Attributes:
        first: a cell's number.
        left_out: (op, model, arm) that lost the device.
        not_compiled: (op, model, tokens).
    """

    first: int = 0
    not_compiled: list[Key] = field(default_factory=list)
    left_out: set[tuple[str, str, str]] = field(default_factory=set)

    def text(self, plan: KernelPlan, measured: Measured) -> str:
        counted = sorted({(entry["op"], entry["model"]) for entry in measured.launches})
        fields = {"first": self.first, "left_out": sorted(self.left_out), "counted": counted}
        return json.dumps(fields | {"not_compiled": self.not_compiled, "plan": plan.as_dict()})


@dataclass
class _Heard:
    """What a process said last. cell: the one that it began. device_lost: what it said of the arm that did it."""

    measured: Measured
    say: Say
    cell: dict[str, Any] | None = None
    device_lost: dict[str, Any] | None = None

    def __call__(self, result: dict[str, Any]) -> None:
        if result["kind"] == "cell":
            self.cell = result
            self.say(f"{result['op']}, {result['model']}, {number_of(result['tokens'], 'token')}")
        elif result["kind"] == "device-lost":
            self.device_lost = result
        elif result["kind"] in ("lost", "wrong"):
            self.say(f"{result['kind']}: {result.get('arm', '')} {result.get('why') or result.get('what')}")
        self.measured.take(dict(result))


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
        plan: what is asked for.
        say: takes a line.
        command: of the measuring process.
        compile_cache: a folder in which compiled code of an earlier run may lie, and stays; None: a temporary one.
        compiler: compiles what the arm `compile` needs.

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
    ended = Ended()
    while task.first < len(plan.cells()) and not measured.partial:
        left = end - time.monotonic()
        if left <= 0:
            measured.partial = f"out of time after {task.first} of {number_of(len(plan.cells()), 'cell')}"
            break
        text = task.text(replace(plan, limit_s=left), measured)
        heard = _Heard(measured, say)
        ended = run_measuring(command, text, left, heard, os.environ | compiler_environment(folder))
        if ended.interrupted:
            measured.interrupted, measured.partial = True, "interrupted"
        if ended.interrupted or ended.code == 0:
            break
        if heard.cell is None:
            measured.partial = measured.partial or ended.why()
        else:
            _lose(ended, heard, heard.cell, task, measured)
    if not (measured.interrupted or measured.samples or measured.wrong):
        raise ended.nothing_measured()


def _lose(ended: Ended, heard: _Heard, cell: dict[str, Any], task: _Task, measured: Measured) -> None:
    where = {name: cell[name] for name in ("op", "model", "tokens")}
    if heard.device_lost:
        arm, why = heard.device_lost["arm"], f"{heard.device_lost['why']}; left out of this op and model from here on"
        task.first = cell["number"]
        task.left_out.add((cell["op"], cell["model"], arm))
    else:
        arm, why = "all", ended.why()
        task.first = cell["number"] + 1
    heard.say(f"lost: {arm} {why}")
    measured.lost.append(where | {"arm": arm, "why": why})
