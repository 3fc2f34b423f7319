"""A finished reproduction on a terminal: the verdict first, then why, then what to type next."""

import shlex

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gemma4_dumps.reader import Dump
from gemma4_dumps.wording import number_of
from gemma4_repro.expectation import Check, Status
from gemma4_repro.log_exceptions import last_lines
from gemma4_repro.runner import Run
from gemma4_repro.scenario import Scenario
from gemma4_repro.verdict import ArmVerdict
from gemma4_triage.cli.output import printable
from gemma4_triage.report.repro_document import LOG_LINES, cause_entry, repeat_command
from gemma4_triage.report.root_cause import root_cause

_STYLES = {"ok": "green", "surprise": "bold red", "failed": "bold red", "not checked": "yellow"}


def print_scenarios(console: Console, scenarios: tuple[Scenario, ...]) -> None:
    """`repro` without an argument."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("scenario", "symptom", "hardware", "time"):
        table.add_column(name, no_wrap=name != "symptom", overflow="fold")
    for scenario in scenarios:
        table.add_row(scenario.id, scenario.symptom, scenario.hardware, f"{scenario.expected_s:.0f} s on 2 cores")
    console.print(table)


def print_run(console: Console, run: Run) -> None:
    """The verdict table, surprises with the end of their logs, the root cause, and the commands to go on with."""
    _verdicts(console, run)
    for verdict in run.verdicts:
        if verdict.surprised:
            _surprise(console, verdict)
    _cause(console, run)
    _title(console, "each arm alone")
    for verdict in run.verdicts:
        _line(console, f"  {repeat_command(run.scenario, verdict.arm)}")


def _verdicts(console: Console, run: Run) -> None:
    table = Table(pad_edge=False, header_style="bold", show_lines=False, box=None)
    table.add_column("arm", no_wrap=True)
    for name in ("expected", "observed"):
        table.add_column(name, overflow="fold", ratio=1)
    table.add_column("", no_wrap=True)
    for verdict in run.verdicts:
        for position, check in enumerate(verdict.checks):
            arm = Text(verdict.arm.id, style="bold") if position == 0 else Text()
            table.add_row(arm, Text(check.expected), Text(printable(_short(check))), _mark(check.status.value))
        summary = f"{verdict.outcome.duration_s:.0f} s, {verdict.arm.device_model}{_numbers(verdict)}"
        table.add_row("", Text(summary, style="dim"), "", _mark(verdict.status))
    console.print(table)
    _line(console, f"{run.scenario.id}: {_status(run)}, {run.duration_s:.0f} s, SGLang {run.sglang_version}")


def _status(run: Run) -> str:
    if any(verdict.surprised for verdict in run.verdicts):
        return "NOT as expected"
    checks = [check for verdict in run.verdicts for check in verdict.checks]
    unchecked = sum(check.status is Status.NOT_CHECKED for check in checks)
    if unchecked:
        were = "was" if unchecked == 1 else "were"
        return f"as expected as far as checked: {unchecked} of {number_of(len(checks), 'check')} {were} not made"
    return "as expected"


def _short(check: Check) -> str:
    # The dump's path follows below in a line of its own, where it can be copied.
    return check.observed.split(" [dump: ")[0]


def _numbers(verdict: ArmVerdict) -> str:
    numbers = verdict.numbers
    parts = []
    if "accept_length" in numbers:
        parts.append(f"accept length {numbers['accept_length']:.2f}")
    if "drafts_differing_share" in numbers:
        parts.append(f"drafts differing {numbers['drafts_differing_share']:.0%}")
    if "page" in numbers:
        parts.append(f"page {numbers['page']} of {numbers['pages_in_buffer']}")
    if "dump" in numbers:
        parts.append(f"dump {numbers['dump']}")
    return "".join(f", {part}" for part in parts)


def _mark(status: str) -> Text:
    return Text(status, style=_STYLES.get(status, ""))


def _surprise(console: Console, verdict: ArmVerdict) -> None:
    _title(console, f"arm {verdict.arm.id} surprised; its log ends with")
    for line in last_lines(verdict.outcome.log, LOG_LINES):
        _line(console, f"  {line}")
    _line(console, f"  the whole log: {verdict.outcome.log}")


def _cause(console: Console, run: Run) -> None:
    entry = cause_entry(run.verdicts)
    if entry is None or entry.manifest is None:
        _title(console, "root cause")
        _line(console, "  No readable dump was written in this run, so nothing is said about the cause.")
        return
    _title(console, "root cause, from the dump")
    console.print(Text(printable(root_cause(Dump(entry.path, entry.manifest)))), soft_wrap=not console.is_terminal)
    _title(console, "the dump")
    _line(console, f"  gemma4-triage dumps show {shlex.quote(str(entry.path))}")


def _title(console: Console, title: str) -> None:
    console.print()
    console.print(Text(title, style="bold cyan"))


def _line(console: Console, text: str) -> None:
    console.print(Text(printable(text)), soft_wrap=True)
