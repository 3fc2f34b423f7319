"""A report on a terminal: the verdict, what each part comes to, and where the rest is."""

from __future__ import annotations

from rich.console import Console

from gemma4_dumps.wording import number_of
from gemma4_triage.report.diagnosis_document import MAY_NOT_BE_ALL, MOST_DAMAGED_SHOWN, NOTHING_WRONG
from gemma4_triage.report.model.records import Finding, Incident, Log, Report, Run
from gemma4_triage.report.model.run_part import part_name
from gemma4_triage.sparkline import sparkline
from gemma4_triage.terminal import add_row, plain_table, print_line

_STYLES = {"ok": "bold green", "bad": "bold red", "unchecked": "bold yellow"}
_LABELS = {"certain": "bold red", "likely": "bold yellow", "possible": "bold", "note": "bold cyan"}
_SPARK_WIDTH = 48
_LISTED = "the written report lists them, and says how many it leaves out"


def print_report(console: Console, report: Report) -> None:
    """Print the report: its verdict first, then a few lines of each part."""
    few = report.damaged if report.damaged_count <= MOST_DAMAGED_SHOWN else report.damaged[:1]
    for item in few:
        print_line(console, item.problem, style="bold yellow")
    if more := report.damaged_count - len(few):
        print_line(console, f"damaged: {number_of(more, 'more dump')}; {_LISTED}", style="bold yellow")
    few = report.unreadable if report.unreadable_count <= MOST_DAMAGED_SHOWN else report.unreadable[:1]
    for item in few:
        print_line(console, f"not read: {item.path}: {item.problem}", style="bold yellow")
    if more := report.unreadable_count - len(few):
        print_line(console, f"not read: {number_of(more, 'more piece')}; {_LISTED}", style="bold yellow")
    print_line(console, report.title, style="bold")
    print_line(console, report.verdict.headline, style=_STYLES[report.verdict.status])
    for sentence in report.verdict.sentences:
        print_line(console, f"  {sentence}")
    if report.run is not None:
        _run(console, report.run)
    for incident in report.incidents:
        _incident(console, incident)
    for log in report.logs:
        _log(console, log)
    if report.commands:
        console.print()
        print_line(console, f"{number_of(len(report.commands), 'command')} to go on; the first:", style="bold")
        print_line(console, f"  {report.commands[0].line}")
    for line in report.left_out:
        print_line(console, f"left out: {line}", style="dim")


def _run(console: Console, run: Run) -> None:
    table = plain_table(part_name(run), "took", "ended", "status")
    for arm in run.arms:
        add_row(table, arm.id, f"{arm.duration_s:.1f} s", arm.ending, arm.status)
    for case in run.cases:
        add_row(table, case.id, f"{case.duration_s:.1f} s", case.ending, "ok" if case.good else "NOT ok")
    console.print()
    console.print(table)


def _incident(console: Console, incident: Incident) -> None:
    label = f"{incident.label}: " if incident.label else ""
    console.print()
    print_line(console, f"{label}{incident.title}", style="bold")
    if all(finding.is_note for finding in incident.findings):
        said = f"{MAY_NOT_BE_ALL}: {incident.open_end}" if incident.open_end else f"{NOTHING_WRONG} here"
        print_line(console, f"  {said}", style="yellow" if incident.open_end else "green")
    for finding in incident.findings:
        _finding(console, finding)
    for dump in incident.dumps:
        step = "" if dump.step is None else f", step {dump.step}"
        print_line(console, f"  [{dump.number}] {dump.verdict}{step}  {dump.id}", style="dim")
    for line in incident.readings:
        print_line(console, f"  {line}", style="dim")
    if incident.events:
        table = plain_table("time, UTC", "", "")
        for event in incident.events:
            add_row(table, event.time_utc, event.source, event.text)
        console.print(table)


def _log(console: Console, log: Log) -> None:
    console.print()
    print_line(console, f"{'log of ' + log.label if log.label else log.name}", style="bold")
    if log.relation:
        print_line(console, f"  {log.relation}")
    for scheduler in log.schedulers:
        for chart in scheduler.charts:
            for one in chart.series:
                spark = sparkline(one.values, min(_SPARK_WIDTH, console.width - 40), chart.top)
                print_line(console, f"  {scheduler.rank} {one.name:<14} {spark}  {one.summary}")
    for finding in log.findings:
        _finding(console, finding)


def _finding(console: Console, finding: Finding) -> None:
    print_line(console, f"  {finding.label.upper()}  {finding.rule}: {finding.cause}", style=_LABELS[finding.label])
