"""A matrix of mutations as text: totals, by structure, defect and phase, the aims, and every row."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gemma4_repro.mutations.matrix import Counts, Matrix, Reliability
from gemma4_repro.mutations.score import Row, State
from gemma4_triage.terminal import print_line, printable

_COUNTED = (
    ("drawn", "drawn"),
    ("inert", "inert"),
    ("never_acted", "never acted"),
    ("seen", "seen"),
    ("right", "right"),
    ("partly", "partly"),
    ("unknown", "unknown"),
    ("wrong", "wrong"),
    ("certain_and_wrong", "certain and wrong"),
    ("noticed_by_sglang", "SGLang noticed"),
    ("tokens_changed", "tokens changed"),
    ("silent", "no mark at all"),
)


def print_matrix(console: Console, matrix: Matrix) -> None:
    """Print it. Of an unfinished draw it says so."""
    for title, counts in (
        ("structure", matrix.by_structure),
        ("defect", matrix.by_defect),
        ("phase", matrix.by_phase),
        ("server", matrix.by_server),
    ):
        console.print(_counts_table(title, (*counts, matrix.total)))
        print_line(console, "")
    console.print(_reliability_table(matrix.reliability))
    print_line(console, "")
    console.print(_rows_table(matrix.rows))
    print_line(console, "")
    for aim in matrix.aims:
        said = {True: "met", False: "NOT met", None: "not to be said"}[aim.met]
        print_line(console, f"{said}: {aim.text} ({aim.found})")
    whole = "" if matrix.complete else " unfinished, go on with --resume;"
    print_line(
        console,
        f"seed {matrix.seed}, {len(matrix.rows)} of {matrix.count} mutations;{whole} {matrix.engine_s:.0f} s of "
        f"engines, probes in {matrix.probes}, SGLang {matrix.sglang_version}",
    )


def matrix_text(matrix: Matrix, width: int = 200) -> str:
    """Return the same without colour, for a file."""
    file = io.StringIO()
    print_matrix(Console(file=file, width=width, color_system=None, force_terminal=False), matrix)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


def _counts_table(title: str, counts: Sequence[Counts]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(title, no_wrap=True)
    for _, head in _COUNTED:
        table.add_column(head, justify="right")
    for one in counts:
        table.add_row(one.name, *(str(getattr(one, name) or "") for name, _ in _COUNTED))
    return table


def _reliability_table(rows: Sequence[Reliability]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("said to be", no_wrap=True)
    for head in ("named", "right", "partly", "unknown", "wrong"):
        table.add_column(head, justify="right")
    for row in rows:
        table.add_row(row.confidence, *map(str, (row.named, row.right, row.partly, row.unknown, row.wrong)))
    return table


def _rows_table(rows: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in ("no", "structure", "defect", "phase", "score", "first cause named", "late", "owner", "without probes"):
        table.add_column(head, no_wrap=head != "without probes", overflow="fold")
    for row in rows:
        mutation = row.mutation
        table.add_row(
            str(mutation.number),
            mutation.structure.value,
            mutation.defect.value,
            mutation.when,
            row.cause.value if row.state is State.ACTED else row.state.value,
            _first(row),
            "" if row.steps_late is None else str(row.steps_late),
            row.owner.value,
            Text(printable(_bare(row))),
        )
    return table


def _first(row: Row) -> str:
    if not row.sight.named:
        return ""
    first = row.sight.named[0]
    return f"{first.confidence.upper()} {first.rule}"


def _bare(row: Row) -> str:
    effect = row.effect
    if effect is None:
        return ""
    tokens = {True: ", other tokens", False: ", same tokens", None: ""}[effect.tokens_changed]
    length = "" if effect.accept_length is None else f", accept length {effect.accept_length:.2f}"
    return f"{effect.noticed.value}: {effect.ending[:60]}{tokens}{length}"
