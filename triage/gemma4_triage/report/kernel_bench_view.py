"""A finished kernel bench on a terminal: a table per op, launches, targets, what was lost."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gemma4_dumps.wording import number_of
from gemma4_triage.cli.output import printable

_STYLES = {"met": "green", "missed": "bold red", "not measured": "bold red"}


def print_kernel_bench(console: Console, document: dict[str, Any]) -> None:
    versions = [f"{name} {document['versions'].get(name, '?')}" for name in ("sglang", "torch", "triton")]
    console.print(Text(f"{document['device']}, {', '.join(versions)}"), soft_wrap=True)
    for op in dict.fromkeys(row["op"] for row in document["rows"]):
        console.print(_table(op, [row for row in document["rows"] if row["op"] == op], list(document["arms"])))
    for entry in _launches(document["launches"]):
        console.print(Text(entry), soft_wrap=True)
    for target in document["targets"]:
        console.print(_target(target), soft_wrap=True)
    for wrong in document["wrong"]:
        console.print(Text(printable(f"wrong answer: {wrong['what']}"), style="bold red"), soft_wrap=True)
    for lost in document["lost"]:
        where = f"{lost['op']}, {lost['model']}, {number_of(lost['tokens'], 'token')}, {lost['arm']}"
        console.print(Text(printable(f"lost: {where}: {lost['why']}"), style="yellow"), soft_wrap=True)
    cells = document["cells"]
    said = f"{cells['measured']} of {cells['planned']} cells in {document['took_s']:.0f} s"
    if compiling := document["compiling"]:
        said += f", of which {compiling['took_s']:.0f} s to compile {compiling['compiled']} of {compiling['of']} cells"
    console.print(Text(said), soft_wrap=True)
    if document["partial"]:
        console.print(Text(f"partial: {document['partial']}", style="yellow"), soft_wrap=True)


def _table(op: str, rows: list[dict[str, Any]], arms: list[str]) -> Table:
    table = Table("model", "tokens", *arms, "of copy", "of sglang", title=f"{op}, us per call", box=SIMPLE)
    for column in table.columns[1:]:
        column.justify = "right"
    cells: dict[tuple[str, int], dict[str, Any]] = {}
    for row in rows:
        cells.setdefault((row["model"], row["tokens"]), {})[row["arm"]] = row
    for (model, tokens), found in cells.items():
        times = [f"{found[arm]['us']['median']:.2f}" if arm in found else "" for arm in arms]
        ours = found.get("ours", {})
        share, speedup = ours.get("copy_share"), ours.get("speedup_over_sglang")
        of_copy = "" if share is None else f"{100 * share:.0f}%"
        table.add_row(model, str(tokens), *times, of_copy, "" if speedup is None else f"x{speedup:.2f}")
    return table


def _launches(launches: list[dict[str, Any]]) -> list[str]:
    found: dict[tuple[str, str], list[str]] = {}
    for entry in launches:
        found.setdefault((entry["op"], entry["model"]), []).append(f"{entry['arm']} {entry['launches_per_step']}")
    return [f"launches per step, {op}, {model}: {', '.join(counts)}" for (op, model), counts in found.items()]


def _target(target: dict[str, Any]) -> Text:
    text = f": {target['title']}: {target['limit']}"
    if target["worst"]:
        worst = target["worst"]
        where = f"{worst['op']}, {worst['model']}, {number_of(worst['tokens'], 'token')}"
        text += f"; worst {worst['value']:.2f} ({where}); missed in {target['missed_in']} of "
        text += number_of(target["measured"], "cell")
    return Text(f"{target['target']}: ").append(target["status"], _STYLES[target["status"]]).append(text)
