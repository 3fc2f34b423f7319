"""A finished step bench on a terminal: a table per model, targets, what was wrong or lost."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from gemma4_triage.report.bench_text import (
    print_lost,
    print_origin,
    print_partial,
    print_wrong,
    ratio_cells,
    target_line,
)
from gemma4_triage.terminal import print_line


def print_step_bench(console: Console, document: dict[str, Any]) -> None:
    print_origin(console, document)
    for model in document["models"]:
        if rows := [row for row in document["rows"] if row["model"] == model]:
            console.print(_table(rows))
    for target in document["targets"]:
        print_line(console, *target_line(target, _where, _worst(target)))
    for wrong in document["wrong"]:
        where = f"{_where(wrong)}, {wrong['arm']}"
        print_wrong(console, where, "logits", wrong["relative_difference"], wrong["tolerance"])
    for lost in document["lost"]:
        print_lost(console, f"{_where(lost)}, {lost['arm']}", lost["why"])
    print_partial(console, document)


def _table(rows: list[dict[str, Any]]) -> Table:
    columns = ("arm", "step, us", "none / arm", "interval", "kernels", "difference", "same tokens")
    title = f"{rows[0]['model']}, {rows[0]['layers']} layers"
    table = Table("batch", *columns, title=title, box=SIMPLE)
    for column in table.columns[2:]:
        column.justify = "right"
    for row in rows:
        answers = row["answers"]
        table.add_row(
            str(row["batch"]),
            row["arm"],
            f"{row['step_us']['median']:.1f}",
            *ratio_cells(row["speedup"], 4),
            "" if row["kernels"] is None else str(row["kernels"]),
            "none" if answers["bit_equal"] else f"{answers['relative_difference']:.4f}",
            f"{100 * answers['same_tokens']:.0f}%",
        )
    return table


def _worst(target: dict[str, Any]) -> str:
    if target["target"] != "faster" or not target["worst"]:
        return ""
    return f"; worst {target['worst']['value']:.4f} ({_where(target['worst'])})"


def _where(entry: dict[str, Any]) -> str:
    return f"{entry['model']}, batch {entry['batch']}" if "batch" in entry else entry["model"]
