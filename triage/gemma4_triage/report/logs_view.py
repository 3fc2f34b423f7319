"""Serving logs on a terminal: what was read, how each scheduler fared over time, then the findings."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console

from gemma4_dumps.wording import number_of
from gemma4_triage.diagnose.unread import Unread
from gemma4_triage.finding import Finding, causes
from gemma4_triage.finding_view import print_finding
from gemma4_triage.logs.facts import LogFacts, RankFacts
from gemma4_triage.logs.notes_in_prose import NOTED, kinds_noted
from gemma4_triage.logs.rules.noted_trouble import SEES
from gemma4_triage.logs.rules.refused_by_check import refused
from gemma4_triage.logs.rules.start_stopped import unfinished
from gemma4_triage.logs.suspects import suspects
from gemma4_triage.logs.trouble_in_words import Seen
from gemma4_triage.report.log_words import pools_text, prefill_text, problem_text, retractions_text, time_text
from gemma4_triage.sparkline import sparkline
from gemma4_triage.terminal import print_line, size_text

_SPARK_WIDTH = 60


def print_logs(console: Console, logs: Sequence[LogFacts], findings: Sequence[Finding], torn: int) -> None:
    """Print what the logs say: `findings` in this order, and that `torn` of the logs were not read to their end."""
    for facts in logs:
        _print_log(console, facts)
    for finding in findings:
        print_finding(console, finding)
    found = causes(findings)
    for facts in logs:
        if not any(piece.source == facts.name for finding in found for piece in finding.evidence):
            print_suspects(console, facts, facts.name if len(logs) > 1 else "")
    verdict = number_of(len(found), "finding") if found else "no findings"
    noted = [] if found else [line for facts in logs if (line := _noted(facts)) is not None]
    verdict += ", while a note beside the log says that something is wrong" if noted else ""
    verdict += f" in what was read: {Unread(in_part=torn).text}" if torn else ""
    print_line(console, verdict, style="bold red" if found else "bold yellow" if torn or noted else "bold green")


def print_suspects(console: Console, facts: LogFacts, name: str) -> None:
    """Print why requests were refused, and what to try if answers are wrong or slow, which no log can show.

    Args:
        console: to print on.
        facts: of a log without a finding.
        name: of the log where there are several, else "".
    """
    for one in refused(facts):
        split = facts.settings.get("disaggregation_mode") in ("prefill", "decode")
        how = "whose clients may see no error of it" if split else "as a healthy server does"
        print_line(console, f"Requests that it refused, {how}, {one.text}", style="dim")
    if (stands := unfinished(facts)) is not None:
        line, said, look = stands
        print_line(console, f"The log ends before the server was ready, in {line}: {said}", style="dim")
        print_line(console, f"  If it stands there: {look}", style="dim")
    if found := suspects(facts):
        of = f" of {name}" if name else ""
        head = (
            f"Wrong answers leave no line in a log, and slow ones few. Only if something{of} is wrong, try one change"
        )
        if (noted := _noted(facts)) is not None:
            head = f"Line {noted[1]} notes what no line of a log shows: {SEES[noted[0]]}. Try one change"
        print_line(console, f"{head} at a time, the first one first:", style="dim")
        for kind, some in groupby(found, key=lambda suspect: suspect.of):
            print_line(console, f"  {SEES[kind]}:", style="dim")
            for suspect in some:
                print_line(console, f"    {suspect.text}", style="dim")


def _noted(facts: LogFacts) -> tuple[Seen, int] | None:
    """Return what a note beside the log says is seen, and its line; None if none says that something is wrong."""
    seen = next(iter(kinds_noted(facts)), None)
    return None if seen is None else (seen, facts.remarks[NOTED.format(seen)].place.line)


def _print_log(console: Console, facts: LogFacts) -> None:
    print_line(console, facts.name, style="bold")
    kinds = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in facts.understood.items())
    size = size_text(facts.size_bytes)
    print_line(
        console, f"  {facts.understood_lines} of {number_of(facts.lines, 'line')} understood, {size}: {kinds or 'none'}"
    )
    for remark in _remarks(facts):
        print_line(console, f"  {remark}")
    if not facts.understood_lines:
        return
    for rank in facts.schedulers:
        _print_rank(console, rank)


def _remarks(facts: LogFacts) -> list[str]:
    remarks = []
    if facts.first_time:
        remarks.append(time_text(facts))
    if facts.pool_tokens:
        ratio = facts.settings.get("swa_full_tokens_ratio")
        remarks.append(f"pools: {pools_text(facts)}{f', ratio {ratio}' if ratio else ''}")
    if facts.faults:
        remarks.append(f"faults injected on purpose: {', '.join(facts.faults)}")
    if facts.problem:
        remarks.append(f"the file {problem_text(facts)}")
    if facts.understood_lines and not facts.served:
        remarks.append("no batch line: nothing here says that the server served a request")
    if facts.torn_last_line:
        remarks.append("the last line has no end; its numbers are not used")
    if facts.dropped_rank_lines:
        remarks.append(f"not followed: {number_of(facts.dropped_rank_lines, 'line')} of further ranks")
    return remarks


def _print_rank(console: Console, rank: RankFacts) -> None:
    if rank.rank:
        print_line(console, f"  {rank.rank}", style="bold")
    cached = "" if rank.cached_share is None else f" ({rank.cached_share:.0%} of prompt tokens cached)"
    print_line(console, f"  prefill      {prefill_text(rank)}{cached}")
    print_line(console, f"  decode       {number_of(rank.decode_lines, 'line')}")
    if said := retractions_text(rank):
        print_line(console, f"  retractions  {said}")
    series = rank.series
    _spark(console, "full usage", series["full_usage_max"], _peak(series["full_usage_max"], "peak {:.2f}"), 1.0)
    _spark(console, "SWA usage", series["swa_usage_max"], _peak(series["swa_usage_max"], "peak {:.2f}"), 1.0)
    _spark(console, "accept len", series["accept_length"], _mean(rank.accept_length, "mean {:.2f}"))
    _spark(console, "tokens/s", series["generated_per_s"], _mean(rank.generated_per_s, "mean {:.1f}"))
    _spark(console, "queue", series["queued_max"], _peak(series["queued_max"], "peak {}"))


def _spark(console: Console, name: str, values: list, note: str, top: float | None = None) -> None:
    if any(values):
        # Beside the name and the note.
        width = min(_SPARK_WIDTH, console.width - 32)
        print_line(console, f"  {name:<11}  {sparkline(values, width, top)}  {note}")


def _peak(values: list, form: str) -> str:
    return form.format(max((value for value in values if value is not None), default=0))


def _mean(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)
