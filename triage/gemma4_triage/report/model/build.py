"""Put a report together: read the source, diagnose it, read the logs, and say what it comes to."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gemma4_dumps.errors import ExitCode
from gemma4_dumps.wording import number_of
from gemma4_triage.diagnose.all_evidence import findings_of, incidents_of
from gemma4_triage.diagnose.commands import named
from gemma4_triage.diagnose.incident import Incident as DiagnosedIncident
from gemma4_triage.diagnose.incident import LogLink
from gemma4_triage.diagnose.plan import completed
from gemma4_triage.diagnose.unread import Unread, in_part, refuse_torn, refuse_unread
from gemma4_triage.errors import NothingChecked
from gemma4_triage.logs.catalog import with_those_alike as log_findings
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.read import read_source
from gemma4_triage.logs.source import Source as LogSource
from gemma4_triage.report.diagnosis_document import (
    MAY_NOT_BE_ALL,
    NOTHING_WRONG,
    Diagnosis,
    damage_line,
    exit_code,
    is_damaged,
)
from gemma4_triage.report.model.comparison_part import comparison_part
from gemma4_triage.report.model.environment import run_environment
from gemma4_triage.report.model.incident_part import incident_part
from gemma4_triage.report.model.limits import MAX_ALL_PICTURES, MAX_INCIDENTS, MAX_LINES, MAX_LOGS, MAX_POINTS, first
from gemma4_triage.report.model.log_part import log_part
from gemma4_triage.report.model.records import (
    Command,
    Finding,
    Group,
    Incident,
    Log,
    Problem,
    Report,
    Run,
    Status,
    Verdict,
)
from gemma4_triage.report.model.run_part import (
    corpus_part,
    part_name,
    run_commands,
    run_headline,
    run_timeline,
    scenario_part,
)
from gemma4_triage.report.model.source import Piece, Source
from gemma4_triage.runs.comparison_record import ComparisonRun
from gemma4_triage.runs.corpus_record import CorpusRun
from gemma4_triage.runs.record_file import RunRecord

MAX_COMMANDS = 80
_TITLES = {
    "corpus": "The corpus of known faults",
    "diff-backends": "Attention backends, side by side",
    "diff-patches": "Patch sets, side by side",
}


@dataclass(frozen=True)
class _Labelled:
    piece: Piece
    diagnosis: Diagnosis


def build_report(source: Source, logs: Sequence[LogFacts]) -> Report:
    """logs: serving logs, beside those of a run's arms.

    Raises UsageMistake for an arm's log that cannot be read, NothingChecked if there is nothing to report.
    """
    run = None if source.verdict is None else _run(source.verdict)
    diagnosed, links = _diagnose(source, logs)
    incidents, left_incidents = _incidents(_worth_telling(diagnosed, source))
    read, left_logs = _logs(source.arm_logs, logs, links)
    unreadable = [item for piece in source.pieces for item in piece.material.unreadable]
    if run is None and not incidents and not unreadable and not any(log.schedulers or log.findings for log in read):
        refuse_torn(logs)
        refuse_unread(source.found.not_read, "; ".join(source.notes[:2]))
        raise NothingChecked(
            "neither a run, a dump, a guard manifest nor a line of a serving log there"
            + "".join(f"; {note}" for note in source.notes[:2]),
            "name a run's folder, dumps, or a folder of dumps; --log takes a server's log",
        )
    damaged = [dump for one in diagnosed for dump in one.diagnosis.damaged]
    older = sum(piece.material.hidden for piece in source.pieces)
    unread = Unread(len(unreadable), in_part(source.found.readings, logs), source.found.not_read, older)
    code = _exit_code(run, [one.diagnosis for one in diagnosed], read, unread)
    told, left_damaged = first(damaged, MAX_LINES, "damaged dump", "; gemma4-triage diagnose --json names them")
    unread_told, left_unread = first(
        unreadable, MAX_LINES, "unreadable piece", "; gemma4-triage diagnose --json names them"
    )
    left_out = (*source.notes, *left_incidents, *left_logs, *left_damaged, *left_unread)
    left_out += (f"{number_of(older, 'older dump')}; --limit 0 reads all of them",) if older else ()
    return Report(
        title=_title(run, source, read),
        sources=(*source.names, *(facts.name for facts in logs)),
        verdict=_verdict(run, incidents, read, unread, bool(damaged)),
        run=run,
        timeline=None if run is None else run_timeline(run),
        incidents=incidents,
        logs=read,
        environment=_environment(run, incidents),
        commands=_commands(run, incidents, read),
        unreadable=tuple(Problem(path=item.place, problem=item.problem) for item in unread_told),
        unreadable_count=len(unreadable),
        damaged=tuple(Problem(path=dump.place, problem=damage_line(dump)) for dump in told),
        damaged_count=len(damaged),
        left_out=left_out,
        exit_code=code,
    )


def _run(record: RunRecord) -> Run:
    if isinstance(record, ComparisonRun):
        return comparison_part(record)
    return corpus_part(record) if isinstance(record, CorpusRun) else scenario_part(record)


def _diagnose(source: Source, logs: Sequence[LogFacts]) -> tuple[list[_Labelled], dict[str, LogLink]]:
    """Return every incident with its findings and what its logs say of them, and how each log stands to them.

    A run of which there is nothing but a log is among the logs, and no incident.
    """
    found = []
    links: dict[str, LogLink] = {}
    for piece in source.pieces:
        material = piece.material
        incidents = material.incidents
        # An arm has a log of its own, and its verdict has read it.
        if source.verdict is None:
            assigned = incidents_of(material, logs, source.found.readings)
            for link in (link for incident in assigned for link in incident.log_links):
                # Of several folders that were named, the one that a log is evidence in has it.
                if link.is_evidence or link.log not in links:
                    links[link.log] = link
            # A log that stands alone is told with the logs.
            incidents = [one for at, one in enumerate(assigned) if at < len(incidents) or one.readings]
        found += [_Labelled(piece, Diagnosis(incident, findings_of(incident))) for incident in incidents]
    return found, links


def _worth_telling(found: list[_Labelled], source: Source) -> list[_Labelled]:
    """Return what left dumps, of a run.

    Processes of arms without one are in the table of arms, which knows what was meant.
    """
    if source.verdict is None and not source.arm_logs:
        return found
    return [one for one in found if one.diagnosis.incident.dumps]


def _incidents(found: list[_Labelled]) -> tuple[tuple[Incident, ...], tuple[str, ...]]:
    shown, left = first(found, MAX_INCIDENTS, "incident", "; gemma4-triage diagnose shows them")
    made: list[Incident] = []
    room = MAX_ALL_PICTURES
    for one in shown:
        part = incident_part(one.diagnosis, one.piece.label, one.piece.expected, room)
        room -= sum(dump.grid is not None or dump.ledger is not None for dump in part.dumps)
        made.append(part)
    return tuple(made), left


def _logs(
    arm_logs: Sequence[tuple[str, Path]], logs: Sequence[LogFacts], links: Mapping[str, LogLink]
) -> tuple[tuple[Log, ...], tuple[str, ...]]:
    """links: by the log's name. What a log that is evidence of an incident says stands with that incident."""
    wanted = [*(("", facts) for facts in logs), *arm_logs]
    shown, left = first(wanted, MAX_LOGS, "log", "; gemma4-triage logs reads them")
    read = []
    for label, log in shown:
        facts = _read_arm(log) if isinstance(log, Path) else log
        # What an arm's load does to its pools is meant; its verdict says whether it went as expected.
        link = None if label else links.get(facts.name)
        told = label or (link is not None and link.is_evidence)
        findings = () if told else completed(log_findings(facts), DiagnosedIncident(logs=(facts,)))
        part = log_part(facts, label, findings, "" if link is None else link.text)
        if part.schedulers or part.findings or not label:
            read.append(part)
    return tuple(read), left


def _read_arm(path: Path) -> LogFacts:
    return read_source(LogSource(str(path)), MAX_POINTS)


def _exit_code(run: Run | None, diagnoses: Sequence[Diagnosis], logs: Sequence[Log], unread: Unread) -> int:
    if is_damaged(diagnoses, unread):
        return ExitCode.DUMP_UNREADABLE
    if run is not None and run.exit_code:
        return run.exit_code
    if any(_causes(log.findings) for log in logs):
        return ExitCode.VIOLATION
    # Whether a run's dumps were meant is said by its own exit code.
    return exit_code(diagnoses if run is None else (), unread)


def _causes(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if not finding.is_note]


def _title(run: Run | None, source: Source, logs: Sequence[Log]) -> str:
    if run is not None:
        return _TITLES.get(run.kind, f"{run.name}, reproduced")
    if any(piece.material.dumps for piece in source.pieces):
        return "Dumps of a Gemma-4 server"
    return "A serving log" if logs else "Guards of a Gemma-4 server"


def _verdict(
    run: Run | None, incidents: Sequence[Incident], logs: Sequence[Log], unread: Unread, damaged: bool
) -> Verdict:
    if run is not None:
        said = (run.symptom, run.root_cause, *run.causes, *_surprises(run))
        return Verdict(status=run.status, headline=run_headline(run), sentences=tuple(text for text in said if text))
    found = [finding for incident in incidents for finding in _causes(incident.findings)[:1]]
    found += [finding for log in logs for finding in _causes(log.findings)[:1]]
    if not found:
        open_ends = sum(bool(incident.open_end) for incident in incidents)
        partly = bool(unread.is_a_lack or damaged or open_ends)
        said = MAY_NOT_BE_ALL if open_ends else NOTHING_WRONG
        said += " in what could be read" if unread.is_a_lack or damaged else ""
        said += f": {unread.text}" if unread.text else ""
        said += f"; of {number_of(open_ends, 'run')} nothing says how it ended" if open_ends else ""
        noted = [f"Note: {one.cause}" for incident in incidents for one in incident.findings]
        status: Status = "unchecked" if partly else "ok"
        return Verdict(status=status, headline=said, sentences=tuple(dict.fromkeys(noted))[:MAX_LINES])
    sentences = list(dict.fromkeys(f"{one.confidence.capitalize()}: {one.cause}" for one in found[:MAX_LINES]))
    summaries = [dump.sentence for incident in incidents[:1] for dump in incident.dumps[:1] if dump.sentence]
    count = sum(len(_causes(one.findings)) for one in (*incidents, *logs))
    headline = f"{found[0].rule} ({found[0].confidence})"
    headline += f", and {number_of(count - 1, 'more finding')}" if count > 1 else ""
    return Verdict(status="bad", headline=headline, sentences=(*sentences, *summaries))


def _surprises(run: Run) -> list[str]:
    failed = [
        f"{part_name(run).capitalize()} {arm.id}: expected {check.expected}, observed {check.observed}."
        for arm in run.arms
        for check in arm.checks
        if check.status == "failed"
    ]
    failed += [f"Case {case.id}: {'; '.join(case.objections) or case.ending}." for case in run.cases if not case.good]
    return failed[:MAX_LINES]


def _environment(run: Run | None, incidents: Sequence[Incident]) -> tuple[Group, ...]:
    """Say what all share: of the run; without one, of the first incident, each incident having its own too."""
    if run is not None:
        return run_environment(run)
    return incidents[0].environment if incidents else ()


def _commands(run: Run | None, incidents: Sequence[Incident], logs: Sequence[Log]) -> tuple[Command, ...]:
    found = [] if run is None else run_commands(run)
    for incident in incidents:
        found += _of_incident(incident)
    for log in logs:
        found += [Command(what=f"after {log.name}", line=line) for one in log.findings for line in one.commands]
        if log.findings:
            found.append(Command(what="the log again", line=f"gemma4-triage logs {shlex.quote(log.name)}"))
    once = {command.line: command for command in reversed(found)}
    return tuple(command for command in found if once.get(command.line) is command)[:MAX_COMMANDS]


def _of_incident(incident: Incident) -> Iterable[Command]:
    for finding in incident.findings:
        yield from (Command(what=f"after {finding.rule}", line=line) for line in finding.commands)
    for dump in incident.dumps[:1]:
        path = named(dump.path)
        yield Command(what="the first dump, field by field", line=f"gemma4-triage dumps show {path}")
        yield Command(what="whether it is whole", line=f"gemma4-triage dumps verify {path}")
        if dump.grid is not None:
            yield Command(what="its attention call again", line=f"gemma4-triage replay {path}")
        if dump.ledger is not None:
            yield Command(what="its pages and their owners", line=f"gemma4-triage audit {path}")
        if dump.repeat:
            yield Command(what="what was running then", line=dump.repeat)
