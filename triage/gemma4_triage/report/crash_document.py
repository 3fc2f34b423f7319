"""The crash matrix and a cell's run as JSON documents. The terminal views show the same facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gemma4_repro.crash.cells import CELLS, Cell
from gemma4_repro.crash.expected import Expected, with_own_patches
from gemma4_repro.crash.loads import LOADS
from gemma4_repro.crash.machine import REFERENCES, Gpu
from gemma4_repro.crash.outcome import Served
from gemma4_repro.verdict import ArmVerdict, exit_code
from gemma4_triage.report.repro_document import arm_fields, root_cause_fields, stand_ins


@dataclass(frozen=True)
class RanCell:
    """A cell as a verdict's arm. environment: what its server was told by variables."""

    id: str
    title: str
    device_model: str
    environment: Mapping[str, str]


@dataclass(frozen=True)
class CrashRun:
    """A finished run of a cell. typed: the command that repeats it. lines: the server's and clients' shell lines."""

    cell: Cell
    folder: Path
    sglang_version: str
    toy: bool
    device: str
    expected: Expected
    served: Served
    verdict: ArmVerdict
    typed: str
    lines: Sequence[str]

    @property
    def exit_code(self) -> int:
        """Return 0 if what happened is what was expected, 1 if not."""
        return exit_code((self.verdict,))


@dataclass(frozen=True)
class Row:
    """A cell of the matrix. obstacle: why this machine cannot run it on real weights. toy: why --toy cannot."""

    cell: Cell
    obstacle: str | None
    toy: str | None


def matrix_document(rows: Sequence[Row], gpus: Sequence[Gpu]) -> dict[str, Any]:
    """Return the matrix: every cell, whether this machine can run it, and what is expected of it."""
    return {
        "gpus": [{**asdict(gpu), "architecture": gpu.sm} for gpu in gpus],
        "cells": [
            {
                "id": row.cell.id,
                "title": row.cell.title,
                "runs_here": row.obstacle is None,
                "why_not": row.obstacle,
                "runs_as_toy": row.toy is None,
                "why_no_toy": row.toy,
                "expected": {gpu.sm: expected_fields(with_own_patches(row.cell, gpu.device)) for gpu in REFERENCES},
            }
            for row in rows
        ],
        "loads": [{"id": load.id, "published": load.published, "chosen": load.chosen} for load in LOADS],
    }


def run_document(run: CrashRun) -> dict[str, Any]:
    """Return a verdict of the kind `repro`, which `gemma4-triage report` reads, with what a cell has beside it."""
    name = f"crash {run.cell.id}"
    return {
        "scenario": name,
        "symptom": run.cell.title,
        "folder": str(run.folder),
        "sglang_version": run.sglang_version,
        "duration_s": round(run.served.duration_s, 2),
        "import_s": 0,
        "host_engine": {"stand_ins": stand_ins() if run.toy else []},
        "arms": [arm_fields(run.verdict, run.typed)],
        "root_cause": root_cause_fields((run.verdict,)),
        "exit_code": run.exit_code,
        "cell": {"id": run.cell.id, "toy": run.toy, "device": run.device},
        "expected": expected_fields(run.expected),
        "stop": run.served.stop,
        "loads": [asdict(load) for load in run.served.loads],
        "shell_lines": list(run.lines),
    }


def expected_fields(found: Expected) -> dict[str, str]:
    """Return an expectation in words."""
    return {"text": found.text, "why": found.why, "measured": found.measured}


def all_rows(obstacles: Mapping[str, str | None], toys: Mapping[str, str | None]) -> list[Row]:
    """Return the matrix in its order. obstacles, toys: by cell id, None where nothing is in the way."""
    return [Row(cell, obstacles[cell.id], toys[cell.id]) for cell in CELLS]
