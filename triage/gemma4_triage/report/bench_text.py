"""What the views of finished benches say alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

from gemma4_triage.terminal import print_line

STATUS_STYLES = {"met": "green", "missed": "bold red", "not measured": "bold red", "not judged": "yellow"}


def print_origin(
    console: Console, document: dict[str, Any], packages: Sequence[str] = ("sglang", "torch", "triton"), more: str = ""
) -> None:
    """Print the device, the versions of these packages, and what more is known of the measurement."""
    versions = [f"{name} {document['versions'].get(name, '?')}" for name in packages]
    print_line(console, f"{document['device']}, {', '.join(versions)}{more}")


def ratio_cells(ratio: dict[str, Any] | None, digits: int) -> tuple[str, str]:
    """Return a ratio and its interval, for two columns."""
    if ratio is None:
        return "", ""
    low, high = ratio["low"], ratio["high"]
    interval = "" if low is None else f"{low:.{digits}f} to {high:.{digits}f}"
    return f"x{ratio['median']:.{digits}f}", interval


def target_line(
    target: dict[str, Any], where: Callable[[dict[str, Any]], str], worst: str = ""
) -> tuple[str | tuple[str, str], ...]:
    """Return the parts of a target's line, with the cells in which it was missed, told by `where`."""
    text = f": {target['title']}{worst}"
    if target["missed_in"]:
        text += f"; missed in {', '.join(map(where, target['missed_in']))}"
    return f"{target['target']}: ", (target["status"], STATUS_STYLES[target["status"]]), text


def print_wrong(console: Console, where: str, what: str, found: float | None, tolerance: float | None) -> None:
    """Print which answers are wrong, whose `what` differs by `found` or cannot be compared."""
    if found is None or tolerance is None:
        said = f"{what} that cannot be compared"
    else:
        said = f"{what} differ by {found:.4f}, tolerance {tolerance:.4f}"
    print_line(console, f"wrong answers: {where}: {said}", style="bold red")


def print_lost(console: Console, where: str, why: str) -> None:
    """Print an arm that did not finish."""
    print_line(console, f"lost: {where}: {why}", style="yellow")


def print_partial(console: Console, document: dict[str, Any]) -> None:
    if document["partial"]:
        print_line(console, f"partial: {document['partial']}", style="yellow")
