"""Requests come in and nothing is done for them: no batch line and no answer follows, for a minute or more."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts, Place, Unserved
from gemma4_triage.logs.pauses import CONTINUE, paused_before
from gemma4_triage.logs.rule import COLLECT, Rule, at, last_sign_of_life, last_work, over
from gemma4_triage.logs.rules.queue_stands import LONG_S
from gemma4_triage.logs.switched_on import MEET, features

_FEW, _FEW_S = 3, 60.0
_MANY, _MANY_S = 16, 30.0
"""So many requests, for so many seconds: a prefill writes a line, and each 40 steps of a decode do."""
_STOPS = ("sigterm", "router_starts", "vllm")


def _find(facts: LogFacts) -> Iterator[Finding]:
    came = facts.unserved
    if came is None or facts.deaths or facts.alarms or any(name in facts.remarks for name in _STOPS):
        return
    if last_work(facts) > came.first.line or (came.answered and not facts.served):
        # Of a server whose level of logging hides batch lines, answers alone say that it works.
        return
    seconds = _seconds(came.first, max(facts.end_time, came.last.time))
    if seconds is None or not _is_long(came.count, seconds):
        return
    sure = facts.served and seconds >= LONG_S
    paused = paused_before(facts)
    yield Finding(
        rule=RULE.id,
        cause=_told(facts, came, seconds) + (" Generation was paused before it and not continued." if paused else ""),
        confidence=Confidence.LIKELY if sure or (paused and facts.served) else Confidence.POSSIBLE,
        evidence=(
            at(facts, came.first, came.text, "the first request that nothing follows"),
            *last_sign_of_life(facts, came.first),
            over(facts, "lines behind it", came.count, "requests that came in"),
            *((at(facts, paused.place, paused.text, "the pause"),) if paused else ()),
        ),
        ruled_out_if=("the log has this process alone, and its schedulers write into another",),
        advice=(
            *((CONTINUE,) if paused else ()),
            "py-spy dump --pid of every process of it while it stands (containers: --cap-add SYS_PTRACE): of the "
            "scheduler it says whether it computes, waits for another rank or for a message; its watchdog "
            "(--watchdog-timeout) speaks only of a step that was begun",
            "curl /health_generate, which asks the scheduler for an answer where /health and /metrics do not",
            *(f"once {one.without}, in which ranks meet" for one in features(facts) if one.setting in MEET),
            "restart it, and keep the log of every rank and node to its end: one that has gone may have said so there",
        ),
        next_commands=(COLLECT,),
    )


def _told(facts: LogFacts, came: Unserved, seconds: float) -> str:
    since = "after it had served" if facts.served else "and the log has no batch line at all"
    return (
        f"{came.count} requests came in over {seconds:.0f} s, {since}, and neither a batch line nor an answer follows: "
        "the scheduler stands, or what hands requests on to it does. No line says why."
    )


def _is_long(count: int, seconds: float) -> bool:
    return (count >= _FEW and seconds >= _FEW_S) or (count >= _MANY and seconds >= _MANY_S)


def _seconds(first: Place, end: str) -> float | None:
    """Return for how long it had been so where the log ends; None if its lines do not say."""
    try:
        return (datetime.fromisoformat(end) - datetime.fromisoformat(first.time)).total_seconds()
    except (TypeError, ValueError):
        return None


RULE = Rule("requests-unserved", "requests come in and nothing is done for them", _find)
