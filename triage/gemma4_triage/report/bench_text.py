"""What the views of finished benches say alike."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

STATUS_STYLES = {"met": "green", "missed": "bold red", "not measured": "bold red"}


def print_origin(console: Console, document: dict[str, Any]) -> None:
    versions = [f"{name} {document['versions'].get(name, '?')}" for name in ("sglang", "torch", "triton")]
    console.print(Text(f"{document['device']}, {', '.join(versions)}"), soft_wrap=True)


def ratio_cells(ratio: dict[str, Any] | None, digits: int) -> tuple[str, str]:
    """A ratio and its interval, for two columns."""
    if ratio is None:
        return "", ""
    low, high = ratio["low"], ratio["high"]
    interval = "" if low is None else f"{low:.{digits}f} to {high:.{digits}f}"
    return f"x{ratio['median']:.{digits}f}", interval


def print_partial(console: Console, document: dict[str, Any]) -> None:
    if document["partial"]:
        console.print(Text(f"partial: {document['partial']}", style="yellow"), soft_wrap=True)
