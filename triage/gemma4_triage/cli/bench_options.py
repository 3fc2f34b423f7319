"""What the verbs below `bench` read and demand alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemma4_dumps.errors import ExitCode
from gemma4_triage.cli.durations import METAVAR, time_from
from gemma4_triage.errors import EnvironmentCannot, UsageMistake
from gemma4_triage.output_file import write_output
from gemma4_triage.terminal import emit_json, stdout_console

if TYPE_CHECKING:
    from rich.console import Console


# An infinity is none: a device is lent for a time, and a bench that is cut off has no rows.
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        parser=time_from(60, 7 * 86400),
        metavar=METAVAR,
        show_default="9m",
        help="For everything; then report what there is, as partial.",
    ),
]
Out = Annotated[Path | None, typer.Option("--output", "-o", metavar="PATH", help="Write the rows there, as JSON.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite --output.")]


def exit_code(document: dict[str, Any], interrupted: bool) -> ExitCode:
    """OK if every target is met and no answer is wrong."""
    if interrupted:
        return ExitCode.INTERRUPTED
    met = all(target["status"] == "met" for target in document["targets"])
    return ExitCode.OK if met and not document["wrong"] else ExitCode.VIOLATION


def read_counts(option: str, text: str, most: int, example: str) -> tuple[int, ...]:
    """Comma-separated numbers from 1 to `most`, each once, ascending. Raises UsageMistake."""
    try:
        counts = sorted({int(word) for word in text.split(",")})
    except ValueError:
        counts = []
    if not counts or counts[0] < 1 or counts[-1] > most:
        raise UsageMistake(f"{option} {text!r} cannot be read", f"numbers from 1 to {most}, for example {example}")
    return tuple(counts)


def read_words(option: str, text: str | None) -> list[str]:
    """Comma-separated; none if the option was left out. Raises UsageMistake if it was given and names nothing."""
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    if text is not None and not words:
        raise UsageMistake(f"{option} {text!r} names nothing", "leave it out for all of them")
    return words


def deliver(
    kind: str,
    document: dict[str, Any],
    show: Callable[[Console, dict[str, Any]], None],
    out: Path | None,
    as_json: bool,
) -> None:
    """Show what was measured, or print its document, and write that to `out`. Raises EnvironmentCannot."""
    if as_json:
        emit_json(kind, document)
    else:
        show(stdout_console(), document)
    if out is not None:
        write_output(out, kind, document)


def need_cuda(verb: str, hint: str) -> None:
    """Raises EnvironmentCannot without a CUDA device, or without a supported SGLang."""
    from gemma4_repro.engine.readiness import check_sglang
    from gemma4_triage.inspection.cuda_presence import cuda_is_present

    if not cuda_is_present():
        raise EnvironmentCannot(f"{verb} measures a GPU, and the CUDA driver shows no device here", hint)
    check_sglang()
