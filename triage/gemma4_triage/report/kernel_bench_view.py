"""A finished kernel bench on a terminal: a table per op, launches, targets, what was lost."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from gemma4_dumps.wording import number_of
from gemma4_triage.report.bench_text import STATUS_STYLES, print_lost, print_origin, print_partial
from gemma4_triage.terminal import print_line


def print_kernel_bench(console: Console, document: dict[str, Any]) -> None:
    print_origin(console, document)
    for op in dict.fromkeys(row["op"] for row in document["rows"]):
        console.print(_table(op, [row for row in document["rows"] if row["op"] == op], list(document["arms"])))
    for entry in _launches(document["launches"]):
        print_line(console, entry)
    for target in document["targets"]:
        print_line(console, *_target(target))
    for wrong in document["wrong"]:
        print_line(console, f"wrong answer: {wrong['what']}", style="bold red")
    for lost in document["lost"]:
        where = f"{lost['op']}, {lost['model']}, {number_of(lost['tokens'], 'token')}, {lost['arm']}"
        print_lost(console, where, lost["why"])
    cells = document["cells"]
    said = f"{cells['measured']} of {cells['planned']} cells in {document['took_s']:.0f} s"
    if compiling := document["compiling"]:
        said += f", of which {compiling['took_s']:.0f} s to compile {compiling['compiled']} of {compiling['of']} cells"
    print_line(console, said)
    print_partial(console, document)


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


def _target(target: dict[str, Any]) -> tuple[str | tuple[str, str], ...]:
    text = f": {target['title']}: {target['limit']}"
    if target["worst"]:
        worst = target["worst"]
        where = f"{worst['op']}, {worst['model']}, {number_of(worst['tokens'], 'token')}"
        text += f"; worst {worst['value']:.2f} ({where}); missed in {target['missed_in']} of "
        text += number_of(target["measured"], "cell")
    return f"{target['target']}: ", (target["status"], STATUS_STYLES[target["status"]]), text
