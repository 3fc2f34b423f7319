"""A serving log as a record of the report: facts, and usage, accept length and throughput over time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gemma4_dumps.wording import number_of
from gemma4_triage import finding as diagnosed
from gemma4_triage.logs.facts import LogFacts, RankFacts
from gemma4_triage.report.log_words import pools_text, prefill_text, problem_text, retractions_text, time_text
from gemma4_triage.report.model.finding_part import finding_part
from gemma4_triage.report.model.limits import MAX_LINES, MAX_RANKS, first, pairs_of
from gemma4_triage.report.model.pictures import Chart, Series
from gemma4_triage.report.model.records import Log, Scheduler
from gemma4_triage.terminal import size_text


def log_part(facts: LogFacts, label: str, findings: Sequence[diagnosed.Finding], relation: str = "") -> Log:
    """label: the arm that it is of. relation: how it stands to the dumps, in a sentence."""
    ranks, left = first(facts.schedulers, MAX_RANKS, "scheduler", "; gemma4-triage logs shows them")
    return Log(
        label=label,
        name=facts.name,
        relation=relation,
        facts=pairs_of(_facts(facts).items()),
        schedulers=tuple(_scheduler(rank) for rank in ranks),
        findings=tuple(finding_part(found, {}, {}) for found in findings[:MAX_LINES]),
        left_out=left,
    )


def _facts(facts: LogFacts) -> dict[str, str]:
    found = {"lines": f"{facts.understood_lines} of {facts.lines} understood, {size_text(facts.size_bytes)}"}
    if facts.first_time:
        found["time"] = time_text(facts)
    if facts.pool_tokens:
        found["pools"] = pools_text(facts)
    if facts.settings:
        found["settings"] = ", ".join(f"{name}={value}" for name, value in facts.settings.items())
    if facts.faults:
        found["injected on purpose"] = ", ".join(facts.faults)
    if facts.problem:
        found["file"] = problem_text(facts)
    return found


def _scheduler(rank: RankFacts) -> Scheduler:
    cached = "" if rank.cached_share is None else f", {rank.cached_share:.0%} of prompt tokens cached"
    facts = {
        "prefill": prefill_text(rank) + cached,
        "decode": number_of(rank.decode_lines, "line"),
    }
    if rank.accept_length is not None:
        facts["accept length"] = f"mean {rank.accept_length:.2f}"
    if rank.generated_per_s is not None:
        facts["decode throughput"] = f"mean {rank.generated_per_s:.1f} tokens/s"
    if said := retractions_text(rank):
        facts["retractions"] = said
    return Scheduler(
        rank=rank.rank,
        charts=tuple(chart for chart in _charts(rank) if chart.series),
        facts=pairs_of(facts.items()),
    )


def _charts(rank: RankFacts) -> list[Chart]:
    columns, ticks = rank.series, _ticks(rank.series["time"])
    accept, generated = rank.accept_length, rank.generated_per_s
    return [
        Chart(
            title="KV pool usage",
            top=1.0,
            ticks=ticks,
            series=_lines(("full pool", columns["full_usage_max"], None), ("SWA pool", columns["swa_usage_max"], None)),
        ),
        _chart("accept length, tokens per verify step", ("accept length", columns["accept_length"], accept), ticks),
        _chart("decode throughput, tokens/s", ("tokens/s", columns["generated_per_s"], generated), ticks),
        _chart("requests waiting", ("queue", columns["queued_max"], None), ticks),
    ]


def _chart(title: str, line: tuple[str, Sequence[float | None], float | None], ticks: tuple[str, ...]) -> Chart:
    highest = max((value for value in line[1] if value is not None), default=0.0)
    return Chart(title=title, top=_round_up(highest), series=_lines(line), ticks=ticks)


def _round_up(value: float) -> float:
    """Round up to a number that is easy to read on an axis, as its half is."""
    if value <= 0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(step * unit for step in (1, 2, 3, 4, 5, 6, 8, 10, 20) if step * unit >= value)


def _lines(*lines: tuple[str, Sequence[float | None], float | None]) -> tuple[Series, ...]:
    """name, values, mean: None to say the peak only. Fewer than two points, or none above zero, are no line."""
    found = []
    for name, values, mean in lines:
        if any(values) and sum(value is not None for value in values) > 1:
            peak = max(value for value in values if value is not None)
            summary = f"peak {peak:g}" if mean is None else f"mean {mean:.4g}, peak {peak:g}"
            found.append(Series(name=name, values=tuple(values), summary=summary))
    return tuple(found)


def _ticks(times: Sequence[str]) -> tuple[str, ...]:
    """Return the clock at begin, middle and end, without the date where all are of one day."""
    if not times:
        return ()
    chosen = [times[0], times[len(times) // 2], times[-1]]
    same_day = len({time[:10] for time in chosen}) == 1
    return tuple(time[11:] if same_day else time for time in chosen)
