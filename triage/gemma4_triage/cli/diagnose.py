"""`gemma4-triage diagnose`: from dumps to causes, with the evidence, and what to do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemma4_dumps.wording import number_of
from gemma4_triage.cli.dumps import AsJson, Directory, open_store
from gemma4_triage.cli.output import emit_json, say, stdout_console
from gemma4_triage.cli.read_logs import read_logs
from gemma4_triage.errors import ExitCode, NothingChecked, UsageMistake

if TYPE_CHECKING:
    from gemma4_triage.diagnose.material import Material
    from gemma4_triage.logs.facts import LogFacts
    from gemma4_triage.report.diagnosis_document import Diagnosis


def register(app: typer.Typer) -> None:
    """Add the `diagnose` verb to the application."""
    app.command("diagnose")(diagnose)


def diagnose(
    dumps: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[DUMP]...",
            help='Names, beginnings of names, paths, or "latest". Without one: all that --dir holds.',
        ),
    ] = None,
    directory: Directory = None,
    limit: Annotated[
        int, typer.Option("--limit", min=0, metavar="N", help="Of a folder, only the newest N dumps; 0 for all.")
    ] = 200,
    log: Annotated[
        list[str] | None,
        typer.Option("--log", metavar="FILE", help="The server's log, plain or gzip; - reads stdin. Repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what went wrong, on which evidence, and what to do about it.

    Dumps of one launch (ranks, target and draft, repetitions) are one incident. Its causes are ranked by certainty;
    each names the values that it rests on, what would rule it out, and the next command. What a log says of the same
    cause becomes evidence of it, of any other a finding of its own.

    Exits 0 if nothing is wrong, 1 for a finding, 4 if a dump cannot be read, 5 if there was nothing to look at.
    """
    from gemma4_triage.report.diagnosis_document import diagnosis_document
    from gemma4_triage.report.diagnosis_view import print_diagnoses

    # First, so that a wrong path costs no reading of dumps.
    logs = read_logs(log or [])
    material = _material(dumps, directory, limit or None)
    diagnoses = _diagnoses(material, logs, bool(dumps))
    for problem in material.unreadable:
        say(f"not read: {problem.path}: {problem.problem}")
    if material.hidden:
        say(f"not read: {number_of(material.hidden, 'older dump')}; --limit 0 reads all of them")
    code = _exit_code(diagnoses, material)
    if as_json:
        emit_json("diagnosis", diagnosis_document(diagnoses, material, code))
    else:
        print_diagnoses(stdout_console(), diagnoses)
    raise typer.Exit(code)


def _material(names: list[str] | None, directory: Path | None, limit: int | None) -> Material:
    from gemma4_triage.diagnose.material import read_named, read_store

    for name in names or ():
        if os.path.isfile(name):
            raise UsageMistake(
                f"{name} is a file, and a dump is a directory",
                "a server's log goes to --log; an exported zip has to be unzipped",
            )
    store = open_store(directory)
    return read_named(store, names, limit) if names else read_store(store, limit)


def _diagnoses(material: Material, logs: list[LogFacts], named: bool) -> list[Diagnosis]:
    from gemma4_triage.diagnose.assign_logs import assign_logs
    from gemma4_triage.diagnose.conclude import conclude
    from gemma4_triage.diagnose.grouping import group
    from gemma4_triage.logs.catalog import findings
    from gemma4_triage.report.diagnosis_document import Diagnosis

    understood = [facts for facts in logs if facts.understood_lines]
    assigned = assign_logs(group(material.dumps, material.guards, material.ledgers), understood, named)
    for guess in assigned.guessed:
        say(guess)
    if not assigned.incidents and not material.unreadable:
        raise NothingChecked(
            "neither a dump nor a guard manifest there" + (", and no line of SGLang's in the logs" if logs else ""),
            "serve with SGLANG_TRTLLM_MHA_DEBUG=1 to get them; --dir names another directory",
        )
    return [
        Diagnosis(incident, conclude(incident, [one for facts in incident.logs for one in findings(facts)]))
        for incident in assigned.incidents
    ]


def _exit_code(diagnoses: list[Diagnosis], material: Material) -> ExitCode:
    if any(diagnosis.findings for diagnosis in diagnoses):
        return ExitCode.VIOLATION
    return ExitCode.DUMP_UNREADABLE if material.unreadable else ExitCode.OK
