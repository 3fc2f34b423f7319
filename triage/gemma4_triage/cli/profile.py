"""`gemma4-triage profile`: where the GPU time of a decode step goes."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING, Annotated

import typer

from gemma4_triage.cli import completions
from gemma4_triage.cli.shared_options import AsJson
from gemma4_triage.errors import EnvironmentCannot, NothingChecked, UsageMistake
from gemma4_triage.terminal import emit_json, stdout_console

if TYPE_CHECKING:
    from gemma4_triage.step_profile.trace_file import TraceFile
    from gemma4_triage.step_profile.trace_tables import TraceTables

METHODS = ("annotation", "graph", "span", "pattern", "whole")


def register(app: typer.Typer) -> None:
    """Add the `profile` verb to the application."""
    app.command("profile")(profile)


def profile(
    trace: Annotated[str, typer.Argument(metavar="TRACE", help="A Chrome trace, .json or .json.gz; - reads stdin.")],
    layers: Annotated[
        int | None, typer.Option("--layers", min=1, max=10_000, help="Layers of the model; counted unless given.")
    ] = None,
    steps: Annotated[
        str | None,
        typer.Option(
            "--steps",
            metavar="METHOD",
            help=f"How steps are found: {', '.join(METHODS)}. Default: the first that works.",
            autocompletion=completions.words(*METHODS),
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what the GPU does in a decode step, from a torch profiler trace (SGLang's /start_profile).

    For example: gemma4-triage profile TRACE.json.gz

    Per device: time and launches by kernel family, launches per layer, gaps, and which launches each of our fused ops
    would replace. Exits 4 for a file that is torn or no trace, 5 if nothing in it ran on a GPU.
    """
    from gemma4_triage.logs.source import Source
    from gemma4_triage.report.profile_document import profile_document
    from gemma4_triage.report.profile_view import print_profile
    from gemma4_triage.step_profile.analyse import analyse
    from gemma4_triage.step_profile.trace_file import TraceFile

    if steps is not None and steps not in METHODS:
        raise UsageMistake(f"--steps is {steps!r}", f"one of {', '.join(METHODS)}")
    if _is_named_pipe(trace):
        raise UsageMistake(f"{trace} is a pipe", "name a file, or read a pipe as stdin: - < PIPE")
    source = TraceFile(Source(trace, "profile"))
    tables = _read(source)
    profiles = analyse(tables, layers, steps)
    if as_json:
        emit_json("profile", profile_document(source, tables.counts, profiles))
    else:
        print_profile(stdout_console(), source, tables.counts, profiles)


def _is_named_pipe(name: str) -> bool:
    """Return whether it is a pipe among files, of which nobody knows whether somebody will ever write to it."""
    with contextlib.suppress(OSError, ValueError):
        return stat.S_ISFIFO(os.stat(name).st_mode) and not name.startswith(("/dev/", "/proc/"))
    return False


def _read(source: TraceFile) -> TraceTables:
    from gemma4_triage.step_profile.trace_tables import TooManyEvents, read_tables

    try:
        tables = read_tables(source.events())
    except TooManyEvents as error:
        raise EnvironmentCannot(
            f"{source.name} holds more than {error}",
            "record fewer steps: num_steps of /start_profile",
        ) from error
    if not tables.devices:
        malformed = f", {tables.counts.malformed} of them without a usable time" if tables.counts.malformed else ""
        raise NothingChecked(
            f"nothing in {source.name} ran on a GPU: {tables.counts.total} events{malformed}",
            'record with activities ["CPU", "GPU"], on a machine with one',
        )
    return tables
