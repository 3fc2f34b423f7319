"""The detection matrix on a terminal: fault by probe, then what is not as it should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gemma4_dumps.wording import number_of
from gemma4_triage.runs.corpus_record import CaseList, CleanRecord, CorpusRun, FaultRecord, LogitFaultRecord
from gemma4_triage.terminal import add_row, is_brief, plain_table, print_line, printable, with_last_cut

_CAUSES = {"right": "green", "wrong": "bold red", "none": "bold red"}


def print_cases(console: Console, cases: CaseList) -> None:
    """Print what `repro corpus --list` says, a line for each case; on a narrow terminal without where it is from.

    Whether the installed release can have a case stands beside it, and below why it cannot.
    """
    rows = [(one.id, one.origin.reference, ", ".join(one.probes), one.title) for one in cases.faults]
    rows += [(one.id, "", "none", one.title) for one in cases.clean]
    rows += [(one.id, one.origin.reference, "none: diff patches", one.title) for one in cases.logit_faults]
    rows = [(name, "absent" if name in cases.absent else "yes", *rest) for name, *rest in rows]
    heads = ("case", "here", "from", "probes", "what is wrong")
    shown = (0, 1, 4) if is_brief(console) else range(len(heads))
    heads, rows = [heads[at] for at in shown], [[row[at] for at in shown] for row in rows]
    table = plain_table(*heads)
    for row in with_last_cut(console, heads, rows):
        add_row(table, *row)
    console.print(table)
    print_absent(console, cases.sglang_version, cases.absent)
    _print_logit_faults(console, [one for one in cases.logit_faults if one.id not in cases.absent])


def print_corpus(console: Console, run: CorpusRun) -> None:
    """Print the matrix, the clean runs, what is not as it should be, and the totals."""
    console.print(_table(run))
    for case in (*run.faults, *run.clean):
        if not case.good:
            _trouble(console, case)
    totals = run.totals
    print_line(
        console,
        f"{number_of(totals.faults, 'fault')}: {totals.missed} missed, "
        f"{totals.wrong_causes} with a wrong cause; "
        f"{number_of(totals.clean_runs, 'clean run')}: {number_of(totals.false_alarms, 'false alarm')}; "
        f"{run.duration_s:.0f} s, SGLang {run.sglang_version}",
    )
    print_absent(console, run.sglang_version, run.absent)
    _print_logit_faults(console, run.logit_faults)


def print_absent(console: Console, release: str, absent: Mapping[str, str]) -> None:
    """Print of each scenario or case that a release cannot have why that is."""
    for name, reason in absent.items():
        print_line(console, f"Not on SGLang {release}: {name}: {reason}")


def _print_logit_faults(console: Console, faults: Sequence[LogitFaultRecord]) -> None:
    for fault in faults:
        print_line(console, f"No probe sees {fault.id}: it changes logits. What catches it: {fault.caught_by}")


def _table(run: CorpusRun) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("case", "from"):
        table.add_column(name, no_wrap=True)
    for probe in run.probes:
        table.add_column(probe, justify="center")
    for name in ("detected", "cause", "step"):
        table.add_column(name, no_wrap=True)
    if any(fault.unguarded for fault in run.faults):
        table.add_column("without probes", overflow="fold")
    for fault in run.faults:
        table.add_row(
            Text(fault.id),
            Text(fault.origin.reference),
            *(_cell(fault, probe) for probe in run.probes),
            Text("yes", style="green") if fault.detected else Text("NO", style="bold red"),
            Text(fault.cause, style=_CAUSES.get(fault.cause, "")),
            "" if fault.steps_to_detection is None else str(fault.steps_to_detection),
            *([Text(printable(_short(fault.unguarded)))] if fault.unguarded else []),
        )
    for clean in run.clean:
        alarms = f"{clean.false_alarms} false alarms" if clean.false_alarms else "no dump"
        counts = (clean.fired.get(probe) for probe in run.probes)
        cells = (Text("") if count is None else Text(str(count), style="bold red") for count in counts)
        table.add_row(Text(clean.id), "clean", *cells, Text(alarms, style="green" if clean.good else "bold red"))
    return table


def _cell(fault: FaultRecord, probe: str) -> Text:
    """Return the dumps of a probe that should fire, of one that need not, or the miss of one that should."""
    count = fault.fired.get(probe, 0)
    if probe in fault.probes:
        return Text(str(count), style="green") if count else Text("miss", style="bold red")
    return Text(str(count), style="dim") if count else Text("")


def _short(ending: str) -> str:
    """Return `crashed: IndexError`, without its message, which the record has."""
    return ": ".join(ending.split(": ")[:2])


def _trouble(console: Console, case: FaultRecord | CleanRecord) -> None:
    console.print()
    console.print(Text(f"{case.id} is not as it should be", style="bold red"))
    if isinstance(case, FaultRecord):
        for probe in case.silent_probes:
            print_line(console, f"  probe {probe} wrote no dump")
    for objection in case.objections:
        print_line(console, f"  {objection}")
    for dump in case.dumps[:4]:
        print_line(console, f"  dump at step {dump.step}: {dump.summary}")
        print_line(console, f"    gemma4-triage dumps show {dump.path}")
    if case.unreadable_dumps:
        print_line(console, f"  {number_of(case.unreadable_dumps, 'dump')} cannot be read")
    print_line(console, f"  the run {case.ending}")
    print_line(console, f"  again: {case.repeat}")
