"""A finished bench on a terminal: rows, targets, what was lost."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from gemma4_triage.report.bench_text import STATUS_STYLES, print_origin, print_partial
from gemma4_triage.terminal import print_line


def print_bench(console: Console, document: dict[str, Any]) -> None:
    if not document["measurement"]:
        print_line(console, "host engine: a smoke run; these numbers are no measurement", style="bold yellow")
    print_origin(console, document, ("sglang", "torch", "flashinfer-python"), _idle_servers(document))
    console.print(_rows(document["rows"]))
    for target in document["targets"]:
        print_line(console, *_target(target))
    for phase, lost in document["lost"].items():
        for text in lost.values():
            print_line(console, f"{phase}: lost {text}", style="red")
    print_partial(console, document)


def ratio_text(ratio: dict[str, Any] | None) -> str:
    """{"median": 1.004, "low": 0.998, "high": 1.009} -> "+0.4% [-0.2, +0.9]"; a factor from 2 on."""
    if ratio is None:
        return ""
    median = ratio["median"]
    if median >= 2:
        return f"x{median:.1f}"
    interval = "" if ratio["low"] is None else f" [{_percent(ratio['low'])}, {_percent(ratio['high'])}]"
    return f"{_percent(median)}%{interval}"


def share_text(share: float | None) -> str:
    """0.0085 -> "0.85%"."""
    return "" if share is None else f"{100 * share:.2f}%"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f}"


def _idle_servers(document: dict[str, Any]) -> str:
    idle = document["method"]["idle_servers_cores"]
    return "" if idle is None else f"; idle servers took {idle['median']:.2f} cores together (median)"


def _rows(rows: list[dict[str, Any]]) -> Table:
    columns = ("mtp", "batch", "arm", "step ms", "10%", "90%", "windows", "rounds", "step against none")
    table = Table(*columns, "probes us", "of a step", "decode tok/s", "dumps", box=SIMPLE)
    for column in table.columns[3:8]:
        column.justify = "right"
    last = None
    for row in rows:
        cell, step = (row["mtp"], row["batch"]), row["step_ms"]
        if last not in (None, cell):
            table.add_section()
        last = cell
        table.add_row(
            "on" if row["mtp"] else "off",
            str(row["batch"]),
            row["arm"],
            *(f"{step[name]:.3f}" for name in ("median", "q10", "q90")),
            str(step["n"]),
            str(row["rounds"]),
            ratio_text(row["step_ratio_to_none"]),
            f"{row['probes_us']['median']:.0f}" if row["probes_us"] else "",
            share_text(row["probes_share"]),
            f"{row['decode_tokens_per_s']:.0f}",
            str(row["dumps"] or ""),
        )
    return table


def _target(target: dict[str, Any]) -> tuple[str | tuple[str, str], ...]:
    if target["target"] == "identity":
        proof = target["proof"] or {"compared": 0, "changed": []}
        text = f"{proof['compared']} of SGLang's functions compared, {len(proof['changed'])} changed ({target['test']})"
    else:
        worst = target["worst"]
        text = f"probes take at most {100 * target['limit']:.0f}% of a step of none"
        if worst:
            where = f"mtp {'on' if worst['mtp'] else 'off'}, batch {worst['batch']}"
            text += f"; worst {share_text(worst['share'])} ({where})"
        hidden = [cell for cell in target["cells"] if cell["held_by"] == "step"]
        if hidden:
            longer = max(cell["step_at_most"] for cell in hidden)
            text += f"; in {len(hidden)} of {len(target['cells'])} cells above that, where the step is at most "
            text += f"{share_text(longer)} longer, noise included"
    return f"{target['arm']}: ", (target["status"], STATUS_STYLES[target["status"]]), f": {text}"
