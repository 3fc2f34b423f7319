"""A diagnosis on a terminal: the dumps of an incident numbered, then cause by cause why, and what to do."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from gemma4_dumps.wording import number_of
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.next_steps import fix_line, why_nothing
from gemma4_triage.diagnose.plan import plan
from gemma4_triage.diagnose.process_state import State, state_of_incident
from gemma4_triage.diagnose.timeline import joint_timeline
from gemma4_triage.diagnose.unread import EVERYTHING, Unread
from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.inspection.provenance_sentence import place
from gemma4_triage.report.diagnosis_document import (
    MAY_NOT_BE_ALL,
    NOTHING_WRONG,
    Diagnosis,
    damage_lines,
    notes,
    summary,
)
from gemma4_triage.terminal import MANNER, add_row, plain_table, print_line
from gemma4_triage.threads import thread_url

_WIDEST_VALUE = 100
_STYLES = {Confidence.CERTAIN: "bold red", Confidence.LIKELY: "bold yellow", Confidence.POSSIBLE: "bold"}
MAX_DUMPS = 12


def print_diagnoses(
    console: Console, diagnoses: Sequence[Diagnosis], unread: Unread = EVERYTHING, left_alone: int = 0
) -> None:
    """Say what is damaged, then show a block per incident with dumps, the newest first, then the runs without.

    Of runs that say the same, one is shown. The last line sums up, with what is unread; left_alone files of folders
    were no evidence.
    """
    for line in damage_lines([dump for diagnosis in diagnoses for dump in diagnosis.damaged]):
        print_line(console, line, style="bold yellow")
    incidents = [diagnosis for diagnosis in diagnoses if diagnosis.incident.dumps]
    for number, diagnosis in enumerate(incidents, start=1):
        name = "INCIDENT" if diagnosis.causes else "RUN"
        _print(console, diagnosis, f"{name} {number} of {len(incidents)}" if len(incidents) > 1 else name)
    runs: dict[tuple[str, ...], list[Diagnosis]] = {}
    for diagnosis in diagnoses:
        if not diagnosis.incident.dumps:
            logs = tuple(facts.name for facts in diagnosis.incident.logs)
            logs += tuple(reading.name for reading in diagnosis.incident.readings)
            runs.setdefault((*logs, *(finding.rule for finding in diagnosis.findings)), []).append(diagnosis)
    for alike in runs.values():
        _print(console, alike[0], "RUN WITHOUT DUMPS")
        if len(alike) > 1:
            print_line(console, f"   the same in {number_of(len(alike) - 1, 'more run')}; --json has them", style="dim")
    if diagnoses:
        if left_alone:
            print_line(console, f"left alone, by their content: {number_of(left_alone, 'file')}", style="dim")
        print_line(console, summary(diagnoses, unread).text, style="bold")


def _print(console: Console, diagnosis: Diagnosis, title: str) -> None:
    _headline(console, diagnosis.incident, title)
    numbers = {dump.manifest.dump_id: f"[{at}]" for at, dump in enumerate(diagnosis.incident.dumps, start=1)}
    numbers |= {facts.name: f"[L{at}]" for at, facts in enumerate(diagnosis.incident.logs, start=1)}
    _dumps(console, diagnosis, numbers)
    numbers |= {one.name: f"[R{at}]" for at, one in enumerate(diagnosis.incident.readings, start=1)}
    _logs(console, diagnosis.incident, numbers)
    _readings(console, diagnosis.incident, numbers)
    _timeline(console, diagnosis.incident, numbers)
    if not diagnosis.causes:
        _nothing(console, diagnosis)
        for facts in diagnosis.incident.logs:
            # Most dumps come without a log, and what reads those takes time to import.
            from gemma4_triage.report.logs_view import print_suspects

            print_suspects(console, facts, numbers[facts.name] if len(diagnosis.incident.logs) > 1 else "")
    for rank, finding in enumerate(diagnosis.findings, start=1):
        _finding(console, finding, rank, numbers)
    _plan(console, diagnosis)
    console.print()


def _headline(console: Console, incident: Incident, name: str) -> None:
    title = name
    if incident.dumps:
        first, last = incident.dumps[0].manifest, incident.dumps[-1].manifest
        ranks = sorted({dump.manifest.host.rank for dump in incident.dumps})
        where = f"{first.host.hostname}, rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
        when = first.created_utc.isoformat(sep=" ", timespec="seconds")
        lasted = (last.created_utc - first.created_utc).total_seconds()
        title += f"  {where}, {when}" + (f", {lasted:.1f} s" if len(incident.dumps) > 1 else "")
    elif incident.guards:
        guards = incident.guards[0]
        title += f"  {guards.fields.get('hostname')}, {guards.fields.get('created_utc')}"
    print_line(console, title, style="bold")


def _dumps(console: Console, diagnosis: Diagnosis, numbers: dict[str, str]) -> None:
    dumps = diagnosis.incident.dumps
    if not dumps:
        return
    table = plain_table("", "dump", "verdict", "where", "step")
    shown = dumps if MANNER.verbose else dumps[:MAX_DUMPS]
    for dump in shown:
        manifest = dump.manifest
        step = "" if manifest.step is None else str(manifest.step)
        cells = (numbers[manifest.dump_id], manifest.dump_id, manifest.verdict, place(manifest), step)
        add_row(table, *cells)
    if len(dumps) > len(shown):
        add_row(table, "", f"{len(dumps) - len(shown)} more; -v shows them", "", "", "")
    console.print(table)


def _logs(console: Console, incident: Incident, numbers: dict[str, str]) -> None:
    for facts in incident.logs:
        when = f", {facts.first_time} to {facts.last_time}" if facts.first_time else ""
        read = f"{facts.understood_lines} of {number_of(facts.lines, 'line')} understood{when}"
        print_line(console, f"{numbers[facts.name]}  {facts.name}: {read}")
    for link in incident.log_links:
        if link.text:
            print_line(console, f"      {link.text}", style="yellow" if link.relation == "guess" else "")


def _readings(console: Console, incident: Incident, numbers: dict[str, str]) -> None:
    for reading, link in zip(incident.readings, incident.reading_links, strict=True):
        print_line(console, f"{numbers[reading.name]}  {reading.name}: {reading.title}")
        if link.text:
            print_line(console, f"      {link.text}", style="yellow" if link.relation == "guess" else "")
        for name, value in reading.facts:
            print_line(console, f"      {name}: {value}", style="dim")


def _timeline(console: Console, incident: Incident, numbers: dict[str, str]) -> None:
    entries = joint_timeline(incident)
    if not entries:
        return
    console.print()
    table = plain_table("time, UTC", "", "")
    for entry in entries:
        add_row(table, entry.time_utc, numbers.get(entry.source, entry.source), entry.text)
    console.print(table)


def _finding(console: Console, finding: Finding, rank: int, numbers: dict[str, str]) -> None:
    console.print()
    title, style = "NOTE", "bold cyan"
    if not finding.is_note:
        title, style = f"{rank}. {finding.confidence.upper()}", _STYLES[finding.confidence]
    print_line(console, f"{title}  {finding.rule}", style=style)
    print_line(console, f"   {finding.cause}")
    table = plain_table("", "", "", "")
    table.show_header = False
    # A traceback on one line would push what the other values mean out of sight.
    table.columns[2].max_width, table.columns[2].no_wrap = _WIDEST_VALUE, False
    for evidence in finding.evidence:
        cells = (
            numbers.get(evidence.source, evidence.source),
            evidence.field,
            _value(evidence.value),
            evidence.meaning,
        )
        add_row(table, *(f"{'     ' * (at == 0)}{cell}" for at, cell in enumerate(cells)))
    console.print(table)
    for label, lines in (
        ("ruled out if", finding.ruled_out_if),
        ("what to do", (*finding.advice, *([fix_line(finding)] if finding.fix else ()))),
        ("upstream", [f"{thread}: {thread_url(thread)}" for thread in finding.upstream]),
    ):
        _labelled(console, label, lines)


def _plan(console: Console, diagnosis: Diagnosis) -> None:
    """Show what to run, in the order in which to do it; whose advice a line is stands behind it, as a comment."""
    steps = plan(diagnosis.findings)
    if not steps and (why := why_nothing(diagnosis.causes)):
        print_line(console, f"   {'next':<13} nothing to run: {why}", style="cyan")
    if steps:
        console.print()
    several = len({rule for step in steps for rule in step.rules}) > 1
    for at, step in enumerate(steps):
        whose = f"  # {', '.join(step.rules)}" if several else ""
        print_line(console, f"   {'next' if at == 0 else '':<13} {step.command}{whose}", style="cyan")


def _labelled(console: Console, label: str, lines: Sequence[str]) -> None:
    for at, line in enumerate(lines):
        print_line(console, f"   {label if at == 0 else '':<13} {line}", style="cyan")


def _value(value: object) -> str:
    return "not there" if value is None else str(value)


def _nothing(console: Console, diagnosis: Diagnosis) -> None:
    incident = diagnosis.incident
    if not incident.guards and not incident.dumps and not incident.logs:
        print_line(console, "this says nothing of what went wrong", style="bold")
        return
    if not incident.guards and not incident.dumps:
        served = any(facts.served for facts in incident.logs) or not incident.logs
        torn = any(facts.problem for facts in incident.logs)
        said = f"{NOTHING_WRONG} in what was read of the log" if torn else f"{NOTHING_WRONG} in the log"
        said += "" if served else ", which holds no batch line"
        print_line(console, f"{said}; there is no guard manifest of this run", style="bold green")
        return
    processes = len(incident.guards)
    verified = sum(guards.fields.get("verified") is True for guards in incident.guards)
    dumps = f"{number_of(len(incident.dumps), 'dump')} of notes only" if incident.dumps else "no dump"
    state = state_of_incident(incident)
    is_open = bool(diagnosis.open_end)
    found = MAY_NOT_BE_ALL if is_open else f"{NOTHING_WRONG} here"
    said = f"{found}: {processes} guarded process{'es' * (processes != 1)}, {verified} verified, {dumps}"
    audits = sum(sum(_counts(ledger.fields.get("audits"))) for ledger in incident.ledgers)
    said += f"; {audits} leak audits without a finding" if audits else ""
    said += f"; {state.value}" if is_open or state in (State.RUNNING, State.SEEN, State.STOPPED) else ""
    print_line(console, said, style="bold yellow" if is_open else "bold green")
    for note in notes(incident):
        print_line(console, f"  noted at start-up: {note}", style="dim")


def _counts(audits: object) -> list[int]:
    return [count for count in audits.values() if isinstance(count, int)] if isinstance(audits, dict) else []
