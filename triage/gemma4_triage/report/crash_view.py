"""The crash matrix and a cell's run on a terminal."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gemma4_repro.crash.cells import Cell
from gemma4_repro.crash.expected import with_own_patches
from gemma4_repro.crash.machine import REFERENCES, Gpu, needs_of_model, obstacle
from gemma4_repro.log_exceptions import last_lines
from gemma4_triage.cli.output import printable
from gemma4_triage.report.crash_document import CrashRun, Row
from gemma4_triage.report.repro_document import root_cause_fields

_LOG_LINES = 15
_STYLES = {"ok": "green", "failed": "bold red", "not checked": "yellow"}


def print_matrix(console: Console, rows: Sequence[Row], gpus: Sequence[Gpu]) -> None:
    """Print every cell, whether it runs here, and what is expected of it; reasons stand below, each once."""
    notes: dict[str, int] = {}
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("cell", "here", "--toy", *(gpu.sm for gpu in REFERENCES)):
        table.add_column(name, no_wrap=True)
    for row in rows:
        expected = [_expected(row.cell, gpu) for gpu in REFERENCES]
        table.add_row(row.cell.id, _mark(row.obstacle, notes), _mark(row.toy, notes), *expected)
    _line(console, f"GPU: {', '.join(gpu.text for gpu in gpus) or 'none that the CUDA driver shows'}")
    console.print(table)
    for reason, number in notes.items():
        _line(console, f"[{number}] {reason}")
    names = ", ".join(gpu.nominal_text for gpu in REFERENCES)
    _line(console, f"what is expected there with the cell's own patches; -: it cannot run the cell ({names})")


def print_run(console: Console, run: CrashRun) -> None:
    """Print what was expected and seen, why, where the evidence lies, and the commands to go on with."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("expected", "observed"):
        table.add_column(name, overflow="fold", ratio=1)
    table.add_column("", no_wrap=True)
    for check in run.verdict.checks:
        mark = Text(check.status.value, style=_STYLES.get(check.status.value, ""))
        table.add_row(Text(check.expected), Text(printable(check.observed)), mark)
    console.print(table)
    word = "as expected" if run.exit_code == 0 else "NOT as expected"
    on = f"CPU engine, {run.device} model" if run.toy else run.device
    _line(console, f"{run.cell.id}: {word}, {run.served.duration_s:.0f} s, {on}, SGLang {run.sglang_version}")
    _line(console, f"stopped because {run.served.stop}")
    for load in run.served.loads:
        answered = "an unknown number" if load.answered is None else str(load.answered)
        length = "" if load.accept_length is None else f", accept length {load.accept_length:.2f}"
        _line(console, f"load {load.id}: {answered} of {load.requests} answered, {load.duration_s:.0f} s{length}")
    _line(console, f"expected because {run.expected.why}; {run.expected.measured}")
    if run.verdict.surprised:
        _title(console, f"the server's log ends with (all of it: {run.served.log})")
        for line in last_lines(run.served.log, _LOG_LINES):
            _line(console, f"  {line}")
    cause = root_cause_fields((run.verdict,))
    if cause is not None:
        _title(console, "root cause, from the dump")
        _line(console, cause["text"])
        _line(console, f"  gemma4-triage dumps show {shlex.quote(cause['dump'])}")
    _title(console, "next")
    _line(console, f"  gemma4-triage report {shlex.quote(str(run.folder))} -o report.html")


def _expected(cell: Cell, gpu: Gpu) -> str:
    return "-" if obstacle(cell, gpu, needs_of_model(cell.model)) else with_own_patches(cell, gpu.device).brief


def _mark(reason: str | None, notes: dict[str, int]) -> str:
    if reason is None:
        return "yes"
    return f"no [{notes.setdefault(reason, len(notes) + 1)}]"


def _title(console: Console, title: str) -> None:
    console.print()
    console.print(Text(printable(title), style="bold cyan"))


def _line(console: Console, text: str) -> None:
    console.print(Text(printable(text)), soft_wrap=True)
