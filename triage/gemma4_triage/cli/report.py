"""`gemma4-triage report`: one document of a run, or of dumps and serving logs, for people and for CI."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemma4_triage.cli import completions
from gemma4_triage.cli.read_logs import read_evidence, read_logs
from gemma4_triage.cli.shared_options import AsJson
from gemma4_triage.cli.store_options import Directory, open_store
from gemma4_triage.errors import UsageMistake
from gemma4_triage.output_file import refuse_existing, write_text
from gemma4_triage.terminal import emit_json, stdout_console

if TYPE_CHECKING:
    from gemma4_triage.report.model.records import Report

KIND = "report"


def register(app: typer.Typer) -> None:
    """Add the `report` verb to the application."""
    app.command("report")(report)


def report(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN_OR_WHATEVER]...",
            autocompletion=completions.complete_dump_or_run,
            help="The folder of a run of repro, diff backends or diff patches; or dumps, folders, zips, logs and what "
            'else `diagnose` takes; names of dumps, "latest". Without one: all that --dir holds.',
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="X.html", help="Write one HTML file that needs no network.")
    ] = None,
    markdown: Annotated[
        Path | None,
        typer.Option("--markdown", metavar="PATH", help="Write Markdown: a file, or TRIAGE_REPORT.md in a folder."),
    ] = None,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="X.xml", help="Write JUnit XML, for CI.")] = None,
    sarif: Annotated[
        Path | None, typer.Option("--sarif", metavar="X.sarif", help="Write SARIF 2.1.0, for code scanning.")
    ] = None,
    log: Annotated[
        list[str] | None,
        typer.Option("--log", metavar="FILE", help="A server's log, plain or packed; - reads stdin. Repeatable."),
    ] = None,
    directory: Directory = None,
    limit: Annotated[
        int, typer.Option("--limit", min=0, metavar="N", help="Read only the newest N dumps of a folder; 0 for all.")
    ] = 200,
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")] = False,
    as_json: AsJson = False,
) -> None:
    """Report on a run, or on dumps and logs: verdict, causes, page tables, ledgers, pools over time, what to do next.

    For example: gemma4-triage report DUMPS --log server.log -o report.html

    Prints a summary, and writes the files that are asked for. All of them, and --json, show the same. The files are
    written whatever the report says.

    Exits as what it reports did: for a run 0 if it was as expected, 1 if not, 5 if it checked nothing; for dumps and
    logs 0 if nothing is wrong, notes aside, 1 for a cause. 4 if evidence is damaged or cannot be read, or was not read
    to its end and nothing is found in the rest, 5 if there was nothing to report.
    """
    files = _files(out, markdown, junit, sarif)
    _refuse(files, force)
    made = _build(sources or [], directory, limit or None, log or [])
    for path, render in files:
        write_text(path, render(made))
    if as_json:
        emit_json(KIND, made.model_dump(mode="json"))
    else:
        from gemma4_triage.report.triage_view import print_report

        print_report(stdout_console(), made)
    raise typer.Exit(made.exit_code)


def _build(names: list[str], directory: Path | None, limit: int | None, names_of_logs: list[str]) -> Report:
    from gemma4_triage.report.model.build import build_report
    from gemma4_triage.report.model.limits import MAX_POINTS
    from gemma4_triage.report.model.source import nothing_but_logs, read_run_or_dumps

    logs = read_logs(names_of_logs, MAX_POINTS)
    # A log alone is reported alone: what the default folder holds may be another server's.
    if logs and not names and directory is None:
        return build_report(nothing_but_logs(), logs)
    source = read_run_or_dumps(open_store(directory), names, limit)
    found = read_evidence(source.found, MAX_POINTS, but=names_of_logs)
    return build_report(source, [*logs, *found])


def _files(
    out: Path | None, markdown: Path | None, junit: Path | None, sarif: Path | None
) -> list[tuple[Path, Callable[[Report], str]]]:
    """Return what to write where. A renderer, and what it imports, is loaded only if it is asked for."""
    found: list[tuple[Path, Callable[[Report], str]]] = []
    if out is not None:
        from gemma4_triage.report.html.render import render_html

        found.append((out, render_html))
    if markdown is not None:
        from gemma4_triage.report.triage_markdown import NAME, render_markdown

        found.append((markdown / NAME if os.path.isdir(markdown) else markdown, render_markdown))
    if junit is not None:
        from gemma4_triage.report.triage_junit import render_junit

        found.append((junit, render_junit))
    if sarif is not None:
        from gemma4_triage.report.triage_sarif import render_sarif

        found.append((sarif, render_sarif))
    return found


def _refuse(files: list[tuple[Path, Callable[[Report], str]]], force: bool) -> None:
    for path, _ in files:
        refuse_existing(path, force)
    places = [os.path.realpath(path) for path, _ in files]
    if len(set(places)) < len(places):
        raise UsageMistake("two reports go to one file", "name a file for each")
