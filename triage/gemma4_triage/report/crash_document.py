"""The crash matrix as one JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gemma4_repro.crash.cells import CELLS, Cell
from gemma4_repro.crash.expected import Expected, with_own_patches
from gemma4_repro.crash.loads import LOADS
from gemma4_repro.crash.machine import REFERENCES, Gpu


@dataclass(frozen=True)
class Row:
    """A cell. obstacle: why it cannot run here on real weights. toy: why --toy cannot."""

    cell: Cell
    obstacle: str | None
    toy: str | None


def matrix_document(rows: Sequence[Row], gpus: Sequence[Gpu]) -> dict[str, Any]:
    """Return the matrix as a document."""
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
                "expected": {gpu.sm: _expected(with_own_patches(row.cell, gpu.device)) for gpu in REFERENCES},
            }
            for row in rows
        ],
        "loads": [{"id": load.id, "published": load.published, "chosen": load.chosen} for load in LOADS],
    }


def _expected(found: Expected) -> dict[str, str]:
    return {"text": found.text, "why": found.why, "measured": found.measured}


def all_rows(obstacles: Mapping[str, str | None], toys: Mapping[str, str | None]) -> list[Row]:
    """Return all in order. obstacles, toys: by cell id, None where it runs."""
    return [Row(cell, obstacles[cell.id], toys[cell.id]) for cell in CELLS]
