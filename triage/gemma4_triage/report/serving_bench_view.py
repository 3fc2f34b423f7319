"""A finished serving bench on a terminal: a table per model and shape, aims, what was wrong or lost."""

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


def print_serving_bench(console: Console, document: dict[str, Any]) -> None:
    print_origin(console, document)
    if not document["measurement"]:
        print_line(console, "a trial on a CPU: its times are no measurement", style="yellow")
    for model in document["models"]:
        if rows := [row for row in document["rows"] if row["model"] == model]:
            console.print(_table(model, rows, document["servers"].get(model, {})))
    for target in document["targets"]:
        print_line(console, *target_line(target, _where))
    for wrong in document["wrong"]:
        print_wrong(console, _where(wrong), "log probabilities", wrong["difference"], wrong["tolerance"])
    for model, lost in document["lost"].items():
        for arm, why in lost.items():
            print_lost(console, f"{model}, {arm}", why)
    print_partial(console, document)


def _table(model: str, rows: list[dict[str, Any]], servers: dict[str, Any]) -> Table:
    times = ("time, s", "none / arm", "interval", "TTFT, ms", "none / arm", "TPOT, ms", "tokens/s", "accepted")
    # Of a load that asks which of two arms is the faster.
    better = ("better / arm",) if any(row.get("better_speedup") for row in rows) else ()
    table = Table("load", "arm", *times, *better, "KV tokens", "differs", title=model, box=SIMPLE)
    for column in table.columns[2:]:
        column.justify = "right"
    for row in rows:
        memory = servers.get(row["arm"], {}).get("memory_usage", {})
        table.add_row(
            row["shape"],
            row["arm"],
            f"{row['wall_s']['median']:.3f}",
            *ratio_cells(row["speedup"], 3),
            f"{row['ttft_ms']['median']:.1f}",
            ratio_cells(row["ttft_speedup"], 3)[0],
            "" if row["tpot_ms"] is None else f"{row['tpot_ms']['median']:.2f}",
            f"{row['tokens_per_s']:.0f}",
            "" if row["accepted"] is None else f"{row['accepted']:.2f}",
            *(ratio_cells(row["better_speedup"], 3)[0] for _ in better),
            str(memory.get("token_capacity", "")),
            "" if row["difference"] is None else f"{row['difference']:.4f}",
        )
    return table


def _where(entry: dict[str, Any]) -> str:
    return ", ".join(entry[name] for name in ("model", "shape", "arm") if name in entry)
