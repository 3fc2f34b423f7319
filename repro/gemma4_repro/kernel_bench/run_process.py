"""Runs process.py, which has torch and SGLang, and collects what it prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gemma4_repro.errors import EnvironmentLacks
from gemma4_repro.kernel_bench.plan import KernelPlan
from gemma4_repro.parent_death import die_with_parent

# What a line with a result begins with: libraries print on stdout too.
MARK = "gemma4-kernel-bench: "
# The process looks at the clock between cells; one that hangs in a cell is ended this long after its limit.
_GRACE_S = 180.0


@dataclass
class Measured:
    """What came back. about: versions and GPU. partial: why it is not all, or empty."""

    about: dict[str, Any] = field(default_factory=dict)
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


def run_plan(plan: KernelPlan, say: Callable[[str], None]) -> Measured:
    """Measure; progress goes to `say`, a line per cell. Ctrl-C ends it with what there is.

    Raises:
        EnvironmentLacks: the process ended without a single sample.
    """
    measured, parent = Measured(), os.getpid()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "gemma4_repro.kernel_bench.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            preexec_fn=lambda: die_with_parent(parent),
        )
        ending = threading.Timer(plan.limit_s + _GRACE_S, process.kill)
        ending.start()
        try:
            _converse(process, plan, measured, say)
        except KeyboardInterrupt:
            measured.interrupted, measured.partial = True, "interrupted"
        finally:
            ending.cancel()
            process.kill()
            code = process.wait()
        errors.seek(0)
        tail = errors.read()[-2000:].strip()
    if measured.interrupted:
        return measured
    if code != 0 and not measured.partial:
        measured.partial = f"the measuring process ended with {code}"
    if not measured.samples and not measured.wrong:
        raise EnvironmentLacks(f"nothing was measured\n{tail}", "the last lines above are the measuring process's")
    return measured


def _converse(process: subprocess.Popen[str], plan: KernelPlan, measured: Measured, say: Callable[[str], None]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(plan.as_dict()))
    process.stdin.close()
    for line in process.stdout:
        if not line.startswith(MARK):
            continue
        result = json.loads(line.removeprefix(MARK))
        if result["kind"] == "cell":
            say(f"{result['op']}, {result['model']}, {result['tokens']} tokens")
        elif result["kind"] in ("lost", "wrong"):
            say(f"{result['kind']}: {result.get('arm', '')} {result.get('why') or result.get('what')}")
        measured.take(result)
    process.wait()
