"""`gemma4-triage logs`: what serving logs say went wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gemma4_dumps.errors import ExitCode
from gemma4_dumps.wording import number_of
from gemma4_triage.cli.read_logs import read_logs
from gemma4_triage.cli.shared_options import AsJson
from gemma4_triage.errors import NothingChecked
from gemma4_triage.terminal import emit_json, stdout_console

if TYPE_CHECKING:
    from gemma4_triage.logs.facts import LogFacts

MAX_POINTS = 4000


def register(app: typer.Typer) -> None:
    """Add the `logs` verb to the application."""
    app.command("logs")(logs)


def logs(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="SGLang's output, plain or packed; - reads stdin.")
    ],
    points: Annotated[
        int,
        typer.Option(
            "--points",
            min=2,
            max=MAX_POINTS,
            help="How many points of a time series to show at most; more are averaged.",
        ),
    ] = 240,
    as_json: AsJson = False,
) -> None:
    """Find crashes, retraction thrash, the pool that binds, lost drafts and slow decoding in serving logs.

    For example: gemma4-triage logs server.log

    Each file is read once, in constant memory, and judged by itself. Exits 0 if nothing was found, 1 for findings,
    4 if nothing was found in a file that is torn or was not read to its end, 5 if no line was understood.
    """
    from gemma4_triage.diagnose.incident import Incident
    from gemma4_triage.diagnose.plan import completed
    from gemma4_triage.diagnose.unread import in_part, refuse_torn
    from gemma4_triage.finding import causes
    from gemma4_triage.logs.catalog import with_those_alike
    from gemma4_triage.report.logs_document import logs_document
    from gemma4_triage.report.logs_view import print_logs

    read = read_logs(files, points)
    found = [one for facts in read for one in completed(with_those_alike(facts), Incident(logs=(facts,)))]
    if not found:
        refuse_torn(read)
        _need_one_understood(read)
    torn = in_part((), read)
    code = ExitCode.VIOLATION if causes(found) else ExitCode.DUMP_UNREADABLE if torn else ExitCode.OK
    if as_json:
        emit_json("logs", logs_document(read, found, torn))
    else:
        print_logs(stdout_console(), read, found, torn)
    raise typer.Exit(code)


def _need_one_understood(read: list[LogFacts]) -> None:
    from gemma4_triage.logs.rules.start_stopped import unfinished

    if not any(facts.understood_lines or unfinished(facts) for facts in read):
        lines, program = sum(facts.lines for facts in read), sum(facts.program_lines for facts in read)
        alike = f", though {program} of them look like a Python program's" if program else ""
        raise NothingChecked(
            f"none of {number_of(lines, 'line')} is SGLang's scheduler's, and none says that something failed{alike}",
            "give the server's stdout and stderr; lines such as 'Prefill batch, #new-seq: …' are looked for",
        )
