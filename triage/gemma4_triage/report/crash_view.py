"""The crash matrix on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from gemma4_repro.crash.cells import Cell
from gemma4_repro.crash.expected import with_own_patches
from gemma4_repro.crash.machine import REFERENCES, Gpu, needs_of_model, obstacle
from gemma4_triage.report.crash_document import Row
from gemma4_triage.terminal import print_line


def print_matrix(console: Console, rows: Sequence[Row], gpus: Sequence[Gpu]) -> None:
    """Print every cell, whether it runs here, and what is expected of it; reasons stand below, each once."""
    notes: dict[str, int] = {}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("cell", "here", "--toy", *(gpu.sm for gpu in REFERENCES)):
        table.add_column(name, no_wrap=True)
    for row in rows:
        expected = [_expected(row.cell, gpu) for gpu in REFERENCES]
        table.add_row(row.cell.id, _mark(row.obstacle, notes), _mark(row.toy, notes), *expected)
    print_line(console, f"GPU: {', '.join(gpu.text for gpu in gpus) or 'none that the CUDA driver shows'}")
    console.print(table)
    for reason, number in notes.items():
        print_line(console, f"[{number}] {reason}")
    names = ", ".join(gpu.nominal_text for gpu in REFERENCES)
    print_line(console, f"what is expected there with the cell's own patches; -: it cannot run the cell ({names})")


def _expected(cell: Cell, gpu: Gpu) -> str:
    return "-" if obstacle(cell, gpu, needs_of_model(cell.model)) else with_own_patches(cell, gpu.device).brief


def _mark(reason: str | None, notes: dict[str, int]) -> str:
    if reason is None:
        return "yes"
    return f"no [{notes.setdefault(reason, len(notes) + 1)}]"
