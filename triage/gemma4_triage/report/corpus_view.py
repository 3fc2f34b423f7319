"""The detection matrix on a terminal: fault by probe, then what is not as it should be."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gemma4_dumps.wording import number_of
from gemma4_repro.detection.case import CleanCase, FaultCase, LogitFault
from gemma4_repro.detection.catalog import LOGIT_FAULTS
from gemma4_repro.detection.matrix import Cause, CleanRow, FaultRow, Matrix
from gemma4_repro.detection.runner import CorpusRun
from gemma4_triage.cli.output import printable
from gemma4_triage.report.corpus_document import probe_columns, repeat_command

_CAUSES = {Cause.RIGHT: "green", Cause.WRONG: "bold red", Cause.NONE: "bold red"}


def print_cases(
    console: Console, faults: Sequence[FaultCase], clean: Sequence[CleanCase], logit_faults: Sequence[LogitFault]
) -> None:
    """`repro corpus --list`."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("case", "from", "what is wrong", "probes"):
        table.add_column(name, no_wrap=name in ("case", "from"), overflow="fold")
    for case in faults:
        table.add_row(case.id, case.origin.reference, case.title, ", ".join(case.probes))
    for case in clean:
        table.add_row(case.id, "", case.title, "none")
    for case in logit_faults:
        table.add_row(case.id, case.origin.reference, case.title, "none: diff patches")
    console.print(table)
    _print_logit_faults(console, logit_faults)


def print_matrix(console: Console, run: CorpusRun) -> None:
    """The matrix, the clean runs, what is not as it should be, and the totals."""
    matrix = run.matrix
    probes = probe_columns(matrix)
    console.print(_table(matrix, probes))
    for row in (*matrix.faults, *matrix.clean):
        if not row.good:
            _trouble(console, row)
    totals = matrix.totals
    _line(
        console,
        f"{number_of(totals['faults'], 'fault')}: {totals['missed']} missed, "
        f"{totals['wrong_causes']} with a wrong cause; "
        f"{number_of(totals['clean_runs'], 'clean run')}: {number_of(totals['false_alarms'], 'false alarm')}; "
        f"{run.duration_s:.0f} s, SGLang {run.sglang_version}",
    )
    _print_logit_faults(console, LOGIT_FAULTS)


def _print_logit_faults(console: Console, faults: Sequence[LogitFault]) -> None:
    for case in faults:
        _line(console, f"No probe sees {case.id}: it changes logits. What catches it: {case.command}")


def _table(matrix: Matrix, probes: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("case", "from"):
        table.add_column(name, no_wrap=True)
    for probe in probes:
        table.add_column(probe, justify="center")
    for name in ("detected", "cause", "step"):
        table.add_column(name, no_wrap=True)
    if any(row.unguarded for row in matrix.faults):
        table.add_column("without probes", overflow="fold")
    for row in matrix.faults:
        table.add_row(
            Text(row.case.id),
            Text(row.case.origin.reference),
            *(_cell(row, probe) for probe in probes),
            Text("yes", style="green") if row.detected else Text("NO", style="bold red"),
            Text(row.cause.value, style=_CAUSES[row.cause]),
            "" if row.steps_to_detection is None else str(row.steps_to_detection),
            *([Text(printable(_short(row.unguarded)))] if row.unguarded else []),
        )
    for row in matrix.clean:
        alarms = f"{row.false_alarms} false alarms" if row.false_alarms else "no dump"
        style = "green" if row.good else "bold red"
        cells = (Text(str(row.fired[probe]), style="bold red") if probe in row.fired else Text("") for probe in probes)
        table.add_row(Text(row.case.id), "clean", *cells, Text(alarms, style=style))
    return table


def _cell(row: FaultRow, probe: str) -> Text:
    """Dumps of a probe that should fire, of one that need not, or the miss of one that should."""
    count = row.fired.get(probe, 0)
    if probe in row.case.probes:
        return Text(str(count), style="green") if count else Text("miss", style="bold red")
    return Text(str(count), style="dim") if count else Text("")


def _short(ending: str) -> str:
    """`crashed: IndexError`, without its message, which the JSON document has."""
    return ": ".join(ending.split(": ")[:2])


def _trouble(console: Console, row: FaultRow | CleanRow) -> None:
    console.print()
    console.print(Text(f"{row.case.id} is not as it should be", style="bold red"))
    if isinstance(row, FaultRow):
        for probe in row.silent:
            _line(console, f"  probe {probe} wrote no dump")
    for objection in row.objections:
        _line(console, f"  {objection}")
    for sighting in row.evidence.sightings[:4]:
        _line(console, f"  dump at step {sighting.step}: {sighting.manifest.summary}")
        _line(console, f"    gemma4-triage dumps show {sighting.path}")
    if row.evidence.unreadable:
        _line(console, f"  {number_of(row.evidence.unreadable, 'dump')} cannot be read")
    _line(console, f"  the run {row.evidence.ending}")
    _line(console, f"  again: {repeat_command(row.case)}")


def _line(console: Console, text: str) -> None:
    console.print(Text(printable(text)), soft_wrap=True)
