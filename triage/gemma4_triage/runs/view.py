"""A finished reproduction on a terminal: the verdict first, then why, then what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gemma4_repro.scenario import Scenario
from gemma4_triage.runs.comparison_view import print_comparison
from gemma4_triage.runs.corpus_record import CorpusRun
from gemma4_triage.runs.corpus_view import print_corpus
from gemma4_triage.runs.record import ArmRecord, CellRun, CheckRecord, RootCause, ScenarioRun, checks_not_made
from gemma4_triage.runs.record_file import RunRecord
from gemma4_triage.terminal import print_line, print_title, printable

_STYLES = {"ok": "green", "surprise": "bold red", "failed": "bold red", "not checked": "yellow"}
_CELL_LOG_LINES = 15


def print_record(console: Console, record: RunRecord) -> None:
    """Print any finished run."""
    if isinstance(record, CellRun):
        print_cell(console, record)
    elif isinstance(record, ScenarioRun):
        print_scenario(console, record)
    elif isinstance(record, CorpusRun):
        print_corpus(console, record)
    else:
        print_comparison(console, record)


def print_scenarios(console: Console, scenarios: tuple[Scenario, ...]) -> None:
    """Print what `repro` without an argument says."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("scenario", "symptom", "hardware", "time"):
        table.add_column(name, no_wrap=name != "symptom", overflow="fold")
    for scenario in scenarios:
        table.add_row(scenario.id, scenario.symptom, scenario.hardware, f"{scenario.expected_s:.0f} s on 2 cores")
    console.print(table)


def print_scenario(console: Console, run: ScenarioRun) -> None:
    """Print the verdict table, surprises with the end of their logs, the root cause, and the commands to go on with."""
    _verdicts(console, run)
    for arm in run.arms:
        if arm.status == "surprise":
            print_title(console, f"arm {arm.id} surprised; its log ends with")
            _lines(console, arm.log_tail)
            print_line(console, f"  the whole log: {arm.log}")
    _cause(console, run.root_cause)
    print_title(console, "each arm alone")
    _lines(console, [arm.repeat for arm in run.arms])
    if run.folder:
        print_title(console, "one page of all of it, to send on")
        print_line(console, f"  gemma4-triage report {shlex.quote(run.folder)} -o report.html")


def print_cell(console: Console, run: CellRun) -> None:
    """Print what was expected and seen, why, where the evidence lies, and the commands to go on with."""
    (arm,) = run.arms
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("expected", "observed"):
        table.add_column(name, overflow="fold", ratio=1)
    table.add_column("", no_wrap=True)
    for check in arm.checks:
        table.add_row(Text(check.expected), Text(printable(check.observed)), _mark(check.status))
    console.print(table)
    word = "as expected" if run.exit_code == 0 else "NOT as expected"
    on = f"CPU engine, {run.cell.device} model" if run.cell.toy else run.cell.device
    print_line(console, f"{run.cell.id}: {word}, {run.duration_s:.0f} s, {on}, SGLang {run.sglang_version}")
    print_line(console, f"stopped because {run.stop}")
    for load in run.loads:
        answered = "an unknown number" if load.answered is None else str(load.answered)
        length = "" if load.accept_length is None else f", accept length {load.accept_length:.2f}"
        print_line(console, f"load {load.id}: {answered} of {load.requests} answered, {load.duration_s:.0f} s{length}")
    print_line(console, f"expected because {run.expected.why}; {run.expected.measured}")
    if arm.status == "surprise":
        print_title(console, f"the server's log ends with (all of it: {arm.log})")
        _lines(console, arm.log_tail[-_CELL_LOG_LINES:])
    if run.root_cause is not None:
        print_title(console, "root cause, from the dump")
        print_line(console, run.root_cause.text)
        print_line(console, _show(run.root_cause))
    print_title(console, "next")
    print_line(console, f"  gemma4-triage report {shlex.quote(run.folder)} -o report.html")


def _verdicts(console: Console, run: ScenarioRun) -> None:
    table = Table(pad_edge=False, header_style="bold", show_lines=False, box=None)
    table.add_column("arm", no_wrap=True)
    for name in ("expected", "observed"):
        table.add_column(name, overflow="fold", ratio=1)
    table.add_column("", no_wrap=True)
    for arm in run.arms:
        for position, check in enumerate(arm.checks):
            name = Text(arm.id, style="bold") if position == 0 else Text()
            # The dump's path follows below in a line of its own, where it can be copied.
            table.add_row(name, Text(check.expected), Text(printable(check.brief)), _mark(check.status))
        summary = f"{arm.duration_s:.0f} s, {arm.device_model}{_numbers(arm)}"
        table.add_row("", Text(summary, style="dim"), "", _mark(arm.status))
    console.print(table)
    print_line(console, f"{run.scenario}: {_status(run)}, {run.duration_s:.0f} s, SGLang {run.sglang_version}")


def _status(run: ScenarioRun) -> str:
    checks: list[CheckRecord] = [check for arm in run.arms for check in arm.checks]
    if any(check.status == "failed" for check in checks):
        return "NOT as expected"
    return f"as expected{checks_not_made([check.status for check in checks])}"


def _numbers(arm: ArmRecord) -> str:
    numbers = arm.numbers
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


def _cause(console: Console, cause: RootCause | None) -> None:
    if cause is None:
        print_title(console, "root cause")
        print_line(console, "  No readable dump was written in this run, so nothing is said about the cause.")
        return
    print_title(console, "root cause, from the dump")
    print_line(console, cause.text)
    print_title(console, "the dump")
    print_line(console, _show(cause))


def _show(cause: RootCause) -> str:
    return f"  gemma4-triage dumps show {shlex.quote(cause.dump)}"


def _lines(console: Console, lines: Sequence[str]) -> None:
    for line in lines:
        print_line(console, f"  {line}")
