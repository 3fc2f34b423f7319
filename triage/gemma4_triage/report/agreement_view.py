"""A comparison of live runs on a terminal: one table, then what differs first and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gemma4_dumps.wording import number_of
from gemma4_repro.log_exceptions import last_lines
from gemma4_repro.parity.compare_tracks import PromptComparison
from gemma4_repro.parity.judge import TRANSFORMERS, SideVerdict
from gemma4_repro.parity.runner import ArmRun
from gemma4_triage.cli.output import printable
from gemma4_triage.report.agreement_document import Agreement, Column
from gemma4_triage.report.agreement_words import (
    cause_sentence,
    crash_hint,
    exercise_sentences,
    fixes_named,
    layer_kind,
    patch_sentences,
    phase,
    prompts_left_out,
    sides_without,
    summary_sentences,
    token_sentence,
)
from gemma4_triage.report.sparkline import sparkline

_GOOD, _BAD = "green", "bold red"
_SERIES_WIDTH = 12
_MOST_IN_CELL, _MOST_LINES = 3, 6


def print_agreement(console: Console, agreement: Agreement) -> None:
    """The table; then per side that differs where and why; then the fixes that this asks for; what died comes last."""
    _table(console, agreement)
    for column in agreement.columns:
        _details(console, column)
    for sentence in patch_sentences(agreement) + exercise_sentences(agreement.exercises) + sides_without(agreement):
        _line(console, sentence)
    if not agreement.run.prompt_logprobs:
        _line(console, prompts_left_out(agreement.run))
    fixes = fixes_named(agreement.deciding)
    if fixes:
        words = ",".join(f"+{fix}" for fix in fixes)
        _line(console, f"Fixes that this asks for: {', '.join(fixes)}; as a patch set: default,{words}")
    run, tolerances = agreement.run, agreement.tolerances
    _line(
        console,
        f"{number_of(len(run.oracle.tracks), 'prompt')}, window {run.oracle.window}; "
        f"equal up to {tolerances.logprob:g} in logprobs and {tolerances.state:g} in states (fp32 round-off); "
        f"{run.duration_s:.0f} s, SGLang {run.sglang_version}",
    )
    for sentence in summary_sentences(agreement):
        _line(console, sentence)


def _table(console: Console, agreement: Agreement) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", show_lines=False)
    table.add_column("", no_wrap=True)
    oracle = agreement.run.oracle
    table.add_column(TRANSFORMERS, overflow="fold", ratio=1)
    for column in agreement.columns:
        table.add_column(_head(column), overflow="fold", ratio=2)
    paired = any(column.gate is None for column in agreement.columns)
    tokens = sum(len(track.tokens) - track.prompt_length for track in oracle.tracks)
    rows = [
        ("outcome", "fp32, no engine", _outcome),
        *([("died", "", _died)] if any(column.death for column in agreement.columns) else []),
        ("patches", "", _patches),
        ("tokens", f"{tokens} by greedy search", lambda column: _finished(column) or _gated(_tokens)(column)),
        ("max |logprob|", "", _gated(_worst)),
        ("first beyond", "", _gated(_first_over)),
        ("first layer", "", _gated(_first_layer)),
        *([("against HF", "", lambda column: _worst(column.oracle))] if paired else []),
        ("accept length", "", _accept_length),
        ("full pool", "", lambda column: _series(column.arm.usage.full, column.arm.usage.full_peak)),
        ("SWA pool", "", lambda column: _series(column.arm.usage.swa, column.arm.usage.swa_peak)),
        ("violations", "", lambda column: _violations(column.arm)),
    ]
    for name, measure, cell in rows:
        table.add_row(name, measure, *(Text(printable(cell(column))) for column in agreement.columns))
    table.add_row("verdict", "", *(_verdict(column) for column in agreement.columns))
    console.print(table)


def _head(column: Column) -> str:
    """`triton, MTP off`; of patch sets also which side it is."""
    side = column.arm.side
    which = side.id.split("-", 1)[0]
    return f"{which}: {side.title}" if which in ("base", "with") else side.title


def _outcome(column: Column) -> str:
    outcome = column.arm.outcome
    if column.shown.completed:
        return f"completed, {outcome.duration_s:.0f} s"
    said = f": {outcome.raised[0].type_name}" if outcome.raised else ""
    return f"{column.shown.status}{said}"


def _died(column: Column) -> str:
    death = column.death
    if death is None:
        return "no"
    if death.step is None:
        return "before any step"
    at = f", at prompt {', '.join(map(str, death.prompts))}" if death.prompts else ""
    dump = f"; {number_of(len(death.dumps), 'dump')}" if death.dumps else ""
    where = f"{'after' if death.step.ended else 'in'} step {death.step.number} ({phase(death.step.mode)})"
    return f"{where}{at}; {number_of(death.finished, 'request')} answered before{dump}"


def _finished(column: Column) -> str:
    """What a side that died had finished; empty for others, or if it had finished nothing."""
    death = column.death
    if death is None or not death.compared:
        return ""
    equal = "equal to HF's, states too" if death.finished_agree else "NOT all equal to HF's"
    return f"{number_of(len(death.compared), 'answer')} finished, {equal}"


def _patches(column: Column) -> str:
    side = column.arm.side
    faults = f"; injected: {', '.join(side.faults)}" if side.faults else ""
    return (", ".join(side.attached) or "none") + faults


def _gated(cell: Callable[[SideVerdict], str]) -> Callable[[Column], str]:
    """The cell of what a side is held against; a base is what others are held against."""
    return lambda column: cell(column.gate) if column.gate else "the measure"


def _tokens(verdict: SideVerdict) -> str:
    if not verdict.comparisons:
        return "-"
    parted = [comparison for comparison in verdict.comparisons if comparison.token]
    if not parted:
        return f"all equal to {_short(verdict.reference)}"
    return _some([f"prompt {c.prompt} from output {c.token.output_index}" for c in parted if c.token])


def _worst(verdict: SideVerdict) -> str:
    if not verdict.comparisons:
        return "-"
    worst = max(verdict.comparisons, key=lambda comparison: comparison.worst)
    return f"{worst.worst:.1e} (prompt {worst.prompt}, position {worst.worst_position})"


def _first_over(verdict: SideVerdict) -> str:
    over = [comparison for comparison in verdict.comparisons if comparison.first_over is not None]
    if not over:
        return "none" if verdict.comparisons else "-"
    return _some([_over(comparison) for comparison in over])


def _over(comparison: PromptComparison) -> str:
    return f"prompt {comparison.prompt}, position {comparison.first_over}"


def _first_layer(verdict: SideVerdict) -> str:
    if not verdict.causes:
        return "none" if verdict.comparisons else "-"
    return _some(
        [
            f"prompt {cause.prompt}, position {cause.place.position} ({phase(cause.place.mode)}), "
            f"layer {cause.place.layer} ({layer_kind(cause.layer_type)})"
            for cause in verdict.causes
        ]
    )


def _some(items: Sequence[str]) -> str:
    """As many as a cell has room for, and how many more there are."""
    more = [f"and {len(items) - _MOST_IN_CELL} more"] if len(items) > _MOST_IN_CELL else []
    return "; ".join([*items[:_MOST_IN_CELL], *more])


def _accept_length(column: Column) -> str:
    result = column.arm.outcome.result
    if not column.arm.side.mtp:
        return "-"
    return f"{result.accept_length:.2f}" if result and result.accept_length else "-"


def _series(values: Sequence[float], peak: float) -> str:
    return f"peak {peak:.0%} {sparkline(values, _SERIES_WIDTH, top=1.0)}" if values else "-"


def _violations(arm: ArmRun) -> str:
    if not arm.dumps:
        return "none" if arm.side.probes != "off" else "no probes"
    rules = [entry.manifest.rule if entry.manifest else entry.state for entry in arm.dumps]
    return f"{number_of(len(rules), 'dump')}: {', '.join(dict.fromkeys(rules))}"


def _verdict(column: Column) -> Text:
    if column.gate is None:
        return Text("the measure")
    return Text(column.gate.status, style=_GOOD if column.gate.good else _BAD)


def _details(console: Console, column: Column) -> None:
    verdict = column.shown
    lines = []
    if column.gate:
        lines += [cause_sentence(verdict, cause) for cause in verdict.causes]
        lines += [token_sentence(c.prompt, c.token, verdict.reference) for c in verdict.comparisons if c.token]
        if len(lines) > _MOST_LINES:
            lines[_MOST_LINES:] = [f"and {len(lines) - _MOST_LINES} more, in verdict.json"]
    lines += [f"dump: gemma4-triage dumps show {entry.path}" for entry in column.arm.dumps]
    if not verdict.completed:
        raised = [f"{raised.type_name}: {raised.message}" for raised in dict.fromkeys(column.arm.outcome.raised)]
        lines += raised or last_lines(column.arm.outcome.log, 3)
        lines.append(f"the whole log: {column.arm.outcome.log}")
        lines += filter(None, [crash_hint(verdict)])
    if not lines:
        return
    console.print(Text(_head(column), style="bold cyan"))
    for line in lines:
        _line(console, f"  {line}")


def _short(reference: str) -> str:
    return "HF's" if reference == TRANSFORMERS else "base's"


def _line(console: Console, text: str) -> None:
    console.print(Text(printable(text)), soft_wrap=True)
