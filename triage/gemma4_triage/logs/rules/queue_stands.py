"""Requests wait and no batch runs, while the server goes on answering its health check."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts, Place, RankFacts
from gemma4_triage.logs.rule import COLLECT, Rule, at, of_settings, on_rank, over

LONG_S = 60.0
"""Without a batch, while requests wait. The longest steps and compilations that a sound server has end before."""


def _find(facts: LogFacts) -> Iterator[Finding]:
    if facts.deaths or facts.alarms:
        return
    for rank in facts.schedulers:
        last = _last_batch(rank)
        if last is None or not last["queued_max"]:
            continue
        seconds = _between(last["time"], facts.end_time)
        if seconds is not None and seconds >= LONG_S:
            yield _tell(facts, rank, last, seconds)
            return


def _last_batch(rank: RankFacts) -> dict | None:
    """Return the last batch line; None if there is none, or if the series tells it from others no more."""
    if not rank.series["line"]:
        return None
    last = {name: column[-1] for name, column in rank.series.items()}
    return last if last["batch_lines"] == 1 else None


def _between(begin: str, end: str) -> float | None:
    try:
        return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()
    except (TypeError, ValueError):
        return None


def _tell(facts: LogFacts, rank: RankFacts, last: dict, seconds: float) -> Finding:
    waits = last["queued_max"]
    embeds = rank.decode_lines == 0
    return Finding(
        rule=RULE.id,
        cause=f"Requests wait{on_rank(rank.rank)} and no batch has run for {seconds:.0f} s, while the process lives: "
        "the scheduler takes none of them in.",
        confidence=Confidence.POSSIBLE,
        evidence=(
            at(facts, Place(last["line"], last["time"]), waits, "the last batch line, with so many waiting"),
            over(facts, "the last stamp", facts.end_time, "of a line that is no batch's"),
            *of_settings(facts, "max_running_requests", "disable_overlap_schedule", "is_embedding"),
        ),
        ruled_out_if=("the log was cut there, or the requests that waited were aborted",),
        advice=(
            "collect, while it stands, shows whether the scheduler computes, waits or turns in its loop",
            *(
                ("a server that only prefills: --disable-overlap-schedule, or --max-running-requests above the peak",)
                if embeds
                else ("once with --disable-overlap-schedule, once with a higher --max-running-requests",)
            ),
            "restart it: the health check does not see this; /health_generate does",
        ),
        next_commands=(COLLECT,),
    )


RULE = Rule("queue-stands", "requests wait and no batch runs", _find)
