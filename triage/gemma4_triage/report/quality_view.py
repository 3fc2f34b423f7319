"""A quality run on a terminal: a table of both parts, what else came up, and what the exit code stands for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from gemma4_dumps.errors import ExitCode
from gemma4_dumps.wording import number_of
from gemma4_triage.terminal import add_row, print_line

_STYLES = {"worse": "bold red", "not judged": "bold yellow", "no worse": "green", "better": "green"}
_LOST_SHOWN = 5


def print_quality(console: Console, document: dict[str, Any]) -> None:
    """Print the document of a quality run."""
    for name, side in document["sides"].items():
        what = f"patches {side['patches']}" if "patches" in side else side["url"]
        print_line(console, f"{name}: {what}; model {side['model']}")
    console.print(_table(document["parts"]))
    for part in document["parts"]:
        _print_part(console, part)
    for text in _patch_lines(document["patches"]):
        print_line(console, text)
    for reason in document["reasons"]:
        print_line(
            console,
            f"exit {document['exit_code']}: {reason}",
            style="bold red" if document["exit_code"] == ExitCode.VIOLATION else "yellow",
        )
    print_line(console, f"every reply: {document['run_folder']}/base/answers.jsonl and with/answers.jsonl")


def _table(parts: list[dict[str, Any]]) -> Table:
    columns = ("part", "compared", "base right", "with right", "only base", "only with", "difference", "95% interval")
    table = Table(*columns, "p", "verdict", box=SIMPLE)
    for column in table.columns[1:9]:
        column.justify = "right"
    for part in parts:
        compared = part["compared"]
        base, other = part["both_right"] + part["only_base_right"], part["both_right"] + part["only_with_right"]
        measured = (
            f"{base} ({base / compared:.1%})",
            f"{other} ({other / compared:.1%})",
            str(part["only_base_right"]),
            str(part["only_with_right"]),
            _points(part["difference"]),
            f"{_points(part['interval_low'])} to {_points(part['interval_high'])}",
            f"{part['mcnemar_p']:.3f}",
        )
        cells = measured if compared else ("",) * len(measured)
        verdict = (part["verdict"], _STYLES[part["verdict"]])
        add_row(table, part["part"], f"{compared} of {part['items']}", *cells, verdict)
    return table


def _points(share: float) -> str:
    """Return a difference of shares in percentage points."""
    return f"{100 * share:+.1f}"


def _print_part(console: Console, part: dict[str, Any]) -> None:
    name = part["part"]
    if part["compared"]:
        text = f"{name}: {part['equal_replies']} of {part['compared']} replies are equal word for word"
        if part["verdict"] in ("no worse", "better"):
            loss = -100 * part["interval_low"]
            text += f"; a loss above {loss:.1f} points is ruled out" if loss > 0 else "; a loss is ruled out"
        print_line(console, text)
    for side in ("base", "with"):
        score = part[side]
        parts = {
            f"{score['unreadable']} unreadable, counted as wrong": score["unreadable"],
            f"{number_of(score['failed'], 'request')} failed": score["failed"],
            f"{score['not_asked']} not asked": score["not_asked"],
        }
        if said := [text for text, count in parts.items() if count]:
            print_line(console, f"{name}, {side}: {'; '.join(said)}", style="yellow")
    if lost := part["lost_items"]:
        more = f" and {len(lost) - _LOST_SHOWN} more" if len(lost) > _LOST_SHOWN else ""
        print_line(console, f"{name}: right with base only: {', '.join(lost[:_LOST_SHOWN])}{more}")


def _patch_lines(patches: list[dict[str, Any]]) -> Iterator[str]:
    said: dict[str, list[str]] = {}
    for patch in patches:
        if patch["times"] is None:
            text = "whether these patches did their work is not counted"
        elif patch["times"]:
            text = "these patches did their work"
        elif patch["times_at_start"]:
            text = "these counted only before the first question, in a warm-up or as CUDA graphs were captured"
        else:
            text = "these patches never did their work, so nothing here is about them"
        said.setdefault(text, []).append(patch["patch"])
    return (f"{text}: {', '.join(ids)}" for text, ids in said.items())
