"""`gemma4-triage diagnose`: from whatever a server left to causes, with the evidence, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gemma4_dumps.wording import number_of
from gemma4_triage.cli import completions
from gemma4_triage.cli.read_logs import read_evidence, read_logs
from gemma4_triage.cli.shared_options import AsJson
from gemma4_triage.cli.store_options import Directory, open_store
from gemma4_triage.errors import NothingChecked
from gemma4_triage.terminal import MANNER, emit_json, say, stdout_console, warn

if TYPE_CHECKING:
    from gemma4_triage.diagnose.sources import Evidence
    from gemma4_triage.logs.facts import LogFacts
    from gemma4_triage.report.diagnosis_document import Diagnosis


def register(app: typer.Typer) -> None:
    """Add the `diagnose` verb to the application."""
    app.command("diagnose")(diagnose)


def diagnose(
    sources: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WHATEVER]...",
            autocompletion=completions.complete_dump_or_run,
            help="Dumps, folders at any depth, run folders, zips, logs and what else a server left, told apart by "
            'content; short ids, names or beginnings of names of dumps, "latest"; - reads a log on stdin. Without any: '
            "the newest incident of this machine.",
        ),
    ] = None,
    directory: Directory = None,
    limit: Annotated[
        int, typer.Option("--limit", min=0, metavar="N", help="Read only the newest N dumps of a folder; 0 for all.")
    ] = 200,
    log: Annotated[
        list[str] | None,
        typer.Option("--log", metavar="FILE", help="The server's log, plain or packed; - reads stdin. Repeatable."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what went wrong, on which evidence, and what to do about it.

    For example: gemma4-triage diagnose server.log DUMPS

    Dumps of one launch (ranks, target and draft, repetitions) are one incident. Its causes are ranked by certainty;
    each names the values that it rests on, what would rule it out, and the next command. A log, a crash snapshot or
    stacks are evidence too if they name a dump or process of the incident, or agree with it; anything else is a run of
    its own. What this release is known for is a note, and no incident.

    Exits 0 if nothing is wrong, notes aside, 1 for a cause, 4 if evidence is damaged or cannot be read, or was not
    read to its end and nothing is found in the rest, 5 if there was nothing to look at, 70 if a rule of ours broke off.
    """
    from gemma4_triage.diagnose.unread import Unread, in_part
    from gemma4_triage.report.diagnosis_document import (
        MOST_DAMAGED_SHOWN,
        damage_lines,
        diagnosis_document,
        exit_code,
    )
    from gemma4_triage.report.diagnosis_view import print_diagnoses

    # First, so that a wrong path costs no reading of dumps.
    named_logs = read_logs(log or [], verb="diagnose")
    evidence = _evidence(sources or [], directory, limit or None, named_logs)
    material = evidence.material
    logs = [*named_logs, *read_evidence(evidence, but=log or ())]
    newest_only = not (sources or log or directory is not None)
    diagnoses = _diagnoses(evidence, logs, f"in {_default_folder()}" if newest_only else "there")
    others = _all_but_the_newest(diagnoses) if newest_only else []
    diagnoses = [one for one in diagnoses if one not in others]
    few = MANNER.verbose or len(material.unreadable) <= MOST_DAMAGED_SHOWN
    shown = material.unreadable if few else material.unreadable[:1]
    for problem in shown:
        warn(f"not read: {problem.place}: {problem.problem}")
    if len(shown) < len(material.unreadable):
        warn(f"not read: {len(material.unreadable) - 1} more; -v shows them all")
    if material.hidden:
        say(f"not read: {number_of(material.hidden, 'older dump')}; --limit 0 reads all of them")
    for remark in _remarks(evidence, others):
        say(remark)
    unread = Unread(len(material.unreadable), in_part(evidence.readings, logs), evidence.not_read, material.hidden)
    code = exit_code(diagnoses, unread)
    if as_json:
        for line in damage_lines([dump for diagnosis in diagnoses for dump in diagnosis.damaged]):
            warn(line)
        emit_json("diagnosis", diagnosis_document(diagnoses, evidence, unread, code))
    else:
        print_diagnoses(stdout_console(), diagnoses, unread, evidence.left_alone)
    raise typer.Exit(code)


def _evidence(names: list[str], directory: Path | None, limit: int | None, logs: list[LogFacts]) -> Evidence:
    from gemma4_triage.diagnose.material import Budget, read_store
    from gemma4_triage.diagnose.sources import Evidence, gather, gather_folder

    # A log alone is judged alone: what the default folder holds may be another server's.
    if logs and not names and directory is None:
        return Evidence()
    store = open_store(directory)
    if names:
        return gather(store, names, limit)
    if directory is not None:
        return gather_folder(directory, limit)
    budget = Budget(limit is not None)
    material = read_store(store, limit, budget)
    return Evidence(material, not_read=budget.skipped, remarks=[budget.remark] if budget.remark else [])


def _diagnoses(evidence: Evidence, logs: list[LogFacts], where: str) -> list[Diagnosis]:
    from gemma4_triage.diagnose.all_evidence import concluded, incidents_of
    from gemma4_triage.diagnose.unread import refuse_torn, refuse_unread
    from gemma4_triage.report.diagnosis_document import Diagnosis

    incidents = incidents_of(evidence.material, logs, evidence.readings)
    if not incidents and not evidence.material.unreadable:
        for remark in evidence.remarks:
            say(remark)
        refuse_torn(logs)
        refuse_unread(evidence.not_read, "see the lines above")
        if evidence.remarks:
            raise NothingChecked("nothing there can be read", "name dumps, logs, zips, or folders that hold some")
        raise NothingChecked(
            f"neither a dump nor a guard manifest {where}"
            + (", and no line of SGLang's scheduler in the logs" if logs else ""),
            "name what a server left, such as its log; serve --debug 1 leaves dumps; gemma4-triage samples has some",
        )
    return [Diagnosis(*one) for one in concluded(incidents)]


def _all_but_the_newest(diagnoses: list[Diagnosis]) -> list[Diagnosis]:
    """Return all but the newest incident with a cause, or the newest run without one: a restart writes manifests."""
    newest = next((one for one in diagnoses if one.causes), diagnoses[0] if diagnoses else None)
    return [one for one in diagnoses if one is not newest]


def _remarks(evidence: Evidence, others: list[Diagnosis]) -> list[str]:
    """Return what a reader has to know of what is not shown, a line each."""
    said = list(evidence.remarks)
    said += [f"{reading.name}: {reading.problem}" for reading in evidence.readings if reading.problem]
    if others:
        bad = sum(bool(one.causes) for one in others)
        what = [*([number_of(bad, "older incident")] if bad else [])]
        what += [number_of(len(others) - bad, "run") + " without one"] if len(others) > bad else []
        said.append(f"not shown: {' and '.join(what)}; gemma4-triage diagnose --dir {_default_folder()} shows all")
    return said


def _default_folder() -> str:
    import shlex

    return shlex.quote(str(open_store(None).root))
