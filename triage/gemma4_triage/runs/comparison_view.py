"""A comparison of live runs on a terminal: one table, then what differs first and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gemma4_dumps.wording import number_of
from gemma4_repro.parity.judge import TRANSFORMERS
from gemma4_runtime.catalog import CATALOG
from gemma4_triage.runs.comparison_record import (
    OWN_COUNT,
    Against,
    ComparedPatch,
    ComparisonRun,
    PromptRecord,
    SideRecord,
)
from gemma4_triage.runs.comparison_sentences import layer_kind
from gemma4_triage.sparkline import sparkline
from gemma4_triage.terminal import print_line, printable

_GOOD, _BAD = "green", "bold red"
_SERIES_WIDTH = 12
_MOST_IN_CELL, _MOST_LINES = 3, 6


def print_comparison(console: Console, run: ComparisonRun) -> None:
    """Print the table; then per side where it differs and why; then the fixes that this asks for, and what died."""
    _table(console, run)
    for side in run.sides:
        _details(console, side)
    for sentence in (*_chosen_patches(run), *patches_at_work(run.patches_compared), *_sides_without(run)):
        print_line(console, sentence)
    if run.prompt_logprobs_why_not:
        print_line(console, run.prompt_logprobs_why_not)
    if run.fixes_sentence:
        print_line(console, run.fixes_sentence)
    tolerances = run.tolerances
    equal = f"equal up to {tolerances.logprob:g} in logprobs and {tolerances.state:g} in states" if tolerances else ""
    print_line(
        console,
        f"{number_of(len(run.prompts), 'prompt')}, window {run.window}; {equal} (fp32 round-off); "
        f"{run.duration_s:.0f} s, SGLang {run.sglang_version}",
    )
    for sentence in run.summary:
        print_line(console, sentence)


def patches_at_work(patches: Sequence[ComparedPatch]) -> list[str]:
    """Return which of the patches in question did their work, which change answers, and why others did nothing."""
    done = [one for one in patches if one.exercised]
    counted = [one.id for one in done if one.known_by == OWN_COUNT]
    called = [one.id for one in done if one.known_by != OWN_COUNT]
    sentences = [f"Did their work, by their own count: {', '.join(counted)}."] if counted else []
    if called:
        sentences.append(f"Functions that they hook were called, which is all that is known: {', '.join(called)}.")
    by_reason: dict[str, list[str]] = {}
    for one in patches:
        if not one.exercised:
            by_reason.setdefault("; ".join(one.why_not), []).append(one.id)
    meant = {patch.id: patch.meant_to_change for patch in CATALOG if patch.meant_to_change}
    sentences += [f"Meant to change answers {meant[e.id]}: {e.id}." for e in patches if e.id in meant]
    return sentences + [f"NOT exercised: {', '.join(ids)} ({why})." for why, ids in by_reason.items()]


def _chosen_patches(run: ComparisonRun) -> list[str]:
    """Return in what the patches of a comparison that names none differ from the default ones."""
    sentences = []
    if run.fixes_added:
        sentences.append(
            f"Added to the default patches, because requests of this load pass the sliding window, where the release "
            f"is wrong without them: {', '.join(run.fixes_added)}."
        )
    if run.fixes_left_out:
        faults = ", ".join(run.sides[0].faults)
        sentences.append(
            f"Left out of the default patches, because they repair {faults}: {', '.join(run.fixes_left_out)}."
        )
    return sentences


def _sides_without(run: ComparisonRun) -> list[str]:
    """Return the sides that never came to what a fault changes, where others did."""
    sentences = []
    for one in run.patches_compared:
        without = [side.id for side in run.sides if one.id in side.faults and side.id not in one.sides]
        if one.exercised and without:
            sentences.append(f"Never came to what {one.id} changes: {', '.join(without)}.")
    return sentences


def _table(console: Console, run: ComparisonRun) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold", show_lines=False)
    table.add_column("", no_wrap=True)
    table.add_column(TRANSFORMERS, overflow="fold", ratio=1)
    for side in run.sides:
        table.add_column(_head(side), overflow="fold", ratio=2)
    paired = any(side.is_base for side in run.sides)
    tokens = sum(prompt.new_tokens for prompt in run.prompts)
    rows = [
        ("outcome", "fp32, no engine", _outcome),
        *([("died", "", _died)] if any(side.died for side in run.sides) else []),
        ("patches", "", _patches),
        ("tokens", f"{tokens} by greedy search", lambda side: _finished(side) or _gated(_tokens)(side)),
        ("max |logprob|", "", _gated(_worst)),
        ("first beyond", "", _gated(_first_over)),
        ("first layer", "", _gated(_first_layer)),
        *([("against HF", "", lambda side: _worst(side.against[0]))] if paired else []),
        ("accept length", "", _accept_length),
        ("full pool", "", lambda side: _series(side.usage.full, side.usage.full_peak)),
        ("SWA pool", "", lambda side: _series(side.usage.swa, side.usage.swa_peak)),
        ("violations", "", _violations),
    ]
    for name, measure, cell in rows:
        table.add_row(name, measure, *(Text(printable(cell(side))) for side in run.sides))
    table.add_row("verdict", "", *(_verdict(side) for side in run.sides))
    console.print(table)


def _head(side: SideRecord) -> str:
    """Return `triton, MTP off`; of patch sets also which side it is."""
    which = side.id.split("-", 1)[0]
    return f"{which}: {side.title}" if which in ("base", "with") else side.title


def _outcome(side: SideRecord) -> str:
    if side.completed:
        return f"completed, {side.duration_s:.0f} s"
    trapped = any(raised.type == "TrappedViolation" for raised in side.raised)
    said = f": {side.raised[0].type}" if side.raised else ""
    return f"{'trapped' if trapped else side.ending}{said}"


def _died(side: SideRecord) -> str:
    death = side.died
    if death is None:
        return "no"
    if death.step is None:
        return "before any step"
    at = f", at prompt {', '.join(map(str, death.prompts_at_fault))}" if death.prompts_at_fault else ""
    dump = f"; {number_of(len(death.dumps), 'dump')}" if death.dumps else ""
    where = f"{'after' if death.between_steps else 'in'} step {death.step} ({death.phase})"
    return f"{where}{at}; {number_of(death.requests_finished, 'request')} answered before{dump}"


def _finished(side: SideRecord) -> str:
    """Return what a side that died had finished; empty for others, or if it had finished nothing."""
    death = side.died
    if death is None or not death.answers_compared:
        return ""
    equal = "equal to HF's, states too" if death.finished_agree_with_transformers else "NOT all equal to HF's"
    return f"{number_of(death.answers_compared, 'answer')} finished, {equal}"


def _patches(side: SideRecord) -> str:
    faults = f"; injected: {', '.join(side.faults)}" if side.faults else ""
    return (", ".join(side.attached) or "none") + faults


def _gated(cell: Callable[[Against], str]) -> Callable[[SideRecord], str]:
    """Return the cell of what a side is held against; a base is what others are held against."""
    return lambda side: "the measure" if side.is_base else cell(side.against[-1])


def _tokens(against: Against) -> str:
    if not against.prompts:
        return "-"
    parted = [(prompt, prompt.first_token_difference) for prompt in against.prompts if prompt.first_token_difference]
    if not parted:
        return f"all equal to {_short(against.reference)}"
    return _some([f"prompt {prompt.prompt} from output {token.output}" for prompt, token in parted if token])


def _worst(against: Against) -> str:
    if not against.prompts:
        return "-"
    worst = max(against.prompts, key=lambda prompt: _or_infinite(prompt.logprob_difference))
    number = "not finite" if worst.logprob_difference is None else f"{worst.logprob_difference:.1e}"
    return f"{number} (prompt {worst.prompt}, position {worst.logprob_difference_position})"


def _or_infinite(number: float | None) -> float:
    return float("inf") if number is None else number


def _first_over(against: Against) -> str:
    over = [prompt for prompt in against.prompts if prompt.first_position_over_tolerance is not None]
    if not over:
        return "none" if against.prompts else "-"
    return _some([_over(prompt) for prompt in over])


def _over(prompt: PromptRecord) -> str:
    return f"prompt {prompt.prompt}, position {prompt.first_position_over_tolerance}"


def _first_layer(against: Against) -> str:
    if not against.causes:
        return "none" if against.prompts else "-"
    return _some(
        [
            f"prompt {cause.prompt}, position {cause.position} ({cause.phase}), "
            f"layer {cause.layer} ({layer_kind(cause.layer_type)})"
            for cause in against.causes
        ]
    )


def _some(items: Sequence[str]) -> str:
    """Return as many as a cell has room for, and how many more there are."""
    more = [f"and {len(items) - _MOST_IN_CELL} more"] if len(items) > _MOST_IN_CELL else []
    return "; ".join([*items[:_MOST_IN_CELL], *more])


def _accept_length(side: SideRecord) -> str:
    return f"{side.accept_length:.2f}" if side.mtp and side.accept_length else "-"


def _series(values: Sequence[float], peak: float) -> str:
    return f"peak {peak:.0%} {sparkline(values, _SERIES_WIDTH, top=1.0)}" if values else "-"


def _violations(side: SideRecord) -> str:
    if not side.dumps:
        return "none" if side.probes != "off" else "no probes"
    rules = [dump.rule or dump.state for dump in side.dumps]
    return f"{number_of(len(rules), 'dump')}: {', '.join(dict.fromkeys(rules))}"


def _verdict(side: SideRecord) -> Text:
    if side.is_base:
        return Text("the measure")
    return Text(side.status, style=_GOOD if side.status == "agrees" else _BAD)


def _details(console: Console, side: SideRecord) -> None:
    lines: list[str] = []
    if not side.is_base:
        against = side.against[-1]
        lines += [cause.text for cause in against.causes]
        lines += [one.first_token_difference.text for one in against.prompts if one.first_token_difference]
        if len(lines) > _MOST_LINES:
            lines[_MOST_LINES:] = [f"and {len(lines) - _MOST_LINES} more, in verdict.json"]
    lines += [f"dump: gemma4-triage dumps show {dump.path}" for dump in side.dumps]
    if not side.completed:
        lines += [f"{raised.type}: {raised.message}" for raised in side.raised] or side.log_tail[-3:]
        lines.append(f"the whole log: {side.log}")
        lines += [side.hint] if side.hint else []
    if not lines:
        return
    console.print(Text(_head(side), style="bold cyan"))
    for line in lines:
        print_line(console, f"  {line}")


def _short(reference: str) -> str:
    return "HF's" if reference == TRANSFORMERS else "base's"
