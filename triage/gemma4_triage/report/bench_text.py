"""What the views of finished benches say alike."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from gemma4_triage.terminal import print_line

STATUS_STYLES = {"met": "green", "missed": "bold red", "not measured": "bold red"}


def print_origin(console: Console, document: dict[str, Any]) -> None:
    versions = [f"{name} {document['versions'].get(name, '?')}" for name in ("sglang", "torch", "triton")]
    print_line(console, f"{document['device']}, {', '.join(versions)}")


def ratio_cells(ratio: dict[str, Any] | None, digits: int) -> tuple[str, str]:
    """Return a ratio and its interval, for two columns."""
    if ratio is None:
        return "", ""
    low, high = ratio["low"], ratio["high"]
    interval = "" if low is None else f"{low:.{digits}f} to {high:.{digits}f}"
    return f"x{ratio['median']:.{digits}f}", interval


def print_partial(console: Console, document: dict[str, Any]) -> None:
    if document["partial"]:
        print_line(console, f"partial: {document['partial']}", style="yellow")
