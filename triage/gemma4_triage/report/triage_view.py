"""A report on a terminal: the verdict, what each part comes to, and where the rest is."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from gemma4_dumps.wording import number_of
from gemma4_triage.cli.dump_table import plain_table
from gemma4_triage.report.model.records import Finding, Incident, Log, Report, Run
from gemma4_triage.report.model.run_part import part_name
from gemma4_triage.report.sparkline import sparkline

_STYLES = {"ok": "bold green", "bad": "bold red", "unchecked": "bold yellow"}
_LABELS = {"certain": "bold red", "likely": "bold yellow", "possible": "bold", "note": "bold cyan"}
_SPARK_WIDTH = 48


def print_report(console: Console, report: Report) -> None:
    """The model's texts are clean already: nothing in them commands a terminal."""
    for item in report.damaged:
        _line(console, Text(item.problem, style="bold yellow"))
    _line(console, Text(report.title, style="bold"))
    _line(console, Text(report.verdict.headline, style=_STYLES[report.verdict.status]))
    for sentence in report.verdict.sentences:
        _line(console, Text(f"  {sentence}"))
    if report.run is not None:
        _run(console, report.run)
    for incident in report.incidents:
        _incident(console, incident)
    for log in report.logs:
        _log(console, log)
    if report.commands:
        _line(console, Text(f"\n{number_of(len(report.commands), 'command')} to go on; the first:", style="bold"))
        _line(console, Text(f"  {report.commands[0].line}"))
    for item in report.unreadable:
        _line(console, Text(f"not read: {item.path}: {item.problem}", style="yellow"))
    for line in report.left_out:
        _line(console, Text(f"left out: {line}", style="dim"))


def _run(console: Console, run: Run) -> None:
    table = plain_table(part_name(run), "took", "ended", "status")
    for arm in run.arms:
        table.add_row(*map(Text, (arm.id, f"{arm.duration_s:.1f} s", arm.ending, arm.status)))
    for case in run.cases:
        table.add_row(*map(Text, (case.id, f"{case.duration_s:.1f} s", case.ending, "ok" if case.good else "NOT ok")))
    console.print()
    console.print(table)


def _incident(console: Console, incident: Incident) -> None:
    label = f"{incident.label}: " if incident.label else ""
    _line(console, Text(f"\n{label}{incident.title}", style="bold"))
    if all(finding.is_note for finding in incident.findings):
        _line(console, Text("  nothing wrong here", style="green"))
    for finding in incident.findings:
        _finding(console, finding)
    for dump in incident.dumps:
        step = "" if dump.step is None else f", step {dump.step}"
        _line(console, Text(f"  [{dump.number}] {dump.verdict}{step}  {dump.id}", style="dim"))


def _log(console: Console, log: Log) -> None:
    _line(console, Text(f"\n{'log of ' + log.label if log.label else log.name}", style="bold"))
    if log.relation:
        _line(console, Text(f"  {log.relation}"))
    for scheduler in log.schedulers:
        for chart in scheduler.charts:
            for one in chart.series:
                spark = sparkline(one.values, _SPARK_WIDTH, chart.top)
                _line(console, Text(f"  {scheduler.rank} {one.name:<14} {spark}  {one.summary}"))
    for finding in log.findings:
        _finding(console, finding)


def _finding(console: Console, finding: Finding) -> None:
    title = Text(f"  {finding.label.upper()}", style=_LABELS[finding.label])
    _line(console, title.append(f"  {finding.rule}: {finding.cause}", style=""))


def _line(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True)
