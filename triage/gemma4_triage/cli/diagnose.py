"""`gemma4-triage diagnose`: from dumps to causes, with the evidence, and what to do."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemma4_dumps.wording import number_of
from gemma4_triage.cli.read_logs import read_logs
from gemma4_triage.cli.shared_options import AsJson
from gemma4_triage.cli.store_options import Directory, open_store
from gemma4_triage.errors import NothingChecked, UsageMistake
from gemma4_triage.terminal import emit_json, say, stdout_console

if TYPE_CHECKING:
    from gemma4_triage.diagnose.incident import Incident
    from gemma4_triage.diagnose.material import Material
    from gemma4_triage.finding import Finding
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
    each names the values that it rests on, what would rule it out, and the next command. A log that names a dump, or
    agrees with it on what the server was, is evidence too; any other log is a run of its own. What this release is
    known for is a note, and no incident.

    Exits 0 if nothing is wrong, notes aside, 1 for a cause, 4 if a dump cannot be read or a finding rests on one whose
    files are damaged, 5 if there was nothing to look at.
    """
    from gemma4_triage.report.diagnosis_document import (
        MOST_DAMAGED_SHOWN,
        damage_lines,
        diagnosis_document,
        exit_code,
    )
    from gemma4_triage.report.diagnosis_view import print_diagnoses

    # First, so that a wrong path costs no reading of dumps.
    logs = read_logs(log or [])
    material = _material(dumps, directory, limit or None)
    diagnoses = _diagnoses(material, logs)
    shown = material.unreadable if len(material.unreadable) <= MOST_DAMAGED_SHOWN else material.unreadable[:1]
    for problem in shown:
        say(f"not read: {problem.path}: {problem.problem}")
    if len(shown) < len(material.unreadable):
        say(f"not read: {len(material.unreadable) - 1} more; --json has them all")
    if material.hidden:
        say(f"not read: {number_of(material.hidden, 'older dump')}; --limit 0 reads all of them")
    code = exit_code(diagnoses, bool(material.unreadable))
    if as_json:
        for line in damage_lines([dump for diagnosis in diagnoses for dump in diagnosis.damaged]):
            say(line)
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


def _diagnoses(material: Material, logs: list[LogFacts]) -> list[Diagnosis]:
    from gemma4_triage.diagnose.assign_logs import assign_logs
    from gemma4_triage.diagnose.conclude import conclude
    from gemma4_triage.diagnose.grouping import group
    from gemma4_triage.report.diagnosis_document import Diagnosis

    understood = [facts for facts in logs if facts.understood_lines]
    incidents = assign_logs(group(material.dumps, material.guards, material.ledgers), understood)
    if not incidents and not material.unreadable:
        raise NothingChecked(
            "neither a dump nor a guard manifest there"
            + (", and no line of SGLang's scheduler in the logs" if logs else ""),
            "serve with SGLANG_TRTLLM_MHA_DEBUG=1 to get them; --dir names another directory",
        )
    return [Diagnosis(incident, conclude(incident, _from_logs(incident))) for incident in incidents]


def _from_logs(incident: Incident) -> list[Finding]:
    if not incident.logs:
        return []
    from gemma4_triage.logs.catalog import findings

    return [one for facts in incident.logs for one in findings(_of_release(facts, incident))]


def _of_release(facts: LogFacts, incident: Incident) -> LogFacts:
    """Return the facts with the release that the incident's dumps were written by, where the log names none."""
    written_by = (dump.manifest.versions.get("sglang") for dump in incident.dumps)
    return facts if facts.release else replace(facts, release=next(filter(None, written_by), ""))
