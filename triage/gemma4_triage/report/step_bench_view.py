"""A finished step bench on a terminal: a table per model, targets, what was wrong or lost."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from gemma4_triage.report.bench_text import STATUS_STYLES, print_origin, print_partial, ratio_cells
from gemma4_triage.terminal import print_line


def print_step_bench(console: Console, document: dict[str, Any]) -> None:
    print_origin(console, document)
    for model in document["models"]:
        if rows := [row for row in document["rows"] if row["model"] == model]:
            console.print(_table(rows))
    for target in document["targets"]:
        print_line(console, *_target(target))
    for wrong in document["wrong"]:
        print_line(console, _wrong(wrong), style="bold red")
    for lost in document["lost"]:
        where = f"{_where(lost)}, {lost['arm']}"
        print_line(console, f"lost: {where}: {lost['why']}", style="yellow")
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


def _target(target: dict[str, Any]) -> tuple[str | tuple[str, str], ...]:
    text = f": {target['title']}"
    if target["target"] == "faster" and target["worst"]:
        worst = target["worst"]
        text += f"; worst {worst['value']:.4f} ({_where(worst)})"
    if target["missed_in"]:
        text += f"; missed in {', '.join(map(_where, target['missed_in']))}"
    return f"{target['target']}: ", (target["status"], STATUS_STYLES[target["status"]]), text


def _wrong(answer: dict[str, Any]) -> str:
    found, limit = answer["relative_difference"], answer["tolerance"]
    if found is None or limit is None:
        return f"wrong answer: {_where(answer)}, {answer['arm']}: logits that cannot be compared"
    return f"wrong answer: {_where(answer)}, {answer['arm']}: logits differ by {found:.4f}, tolerance {limit:.4f}"


def _where(entry: dict[str, Any]) -> str:
    return f"{entry['model']}, batch {entry['batch']}" if "batch" in entry else entry["model"]
