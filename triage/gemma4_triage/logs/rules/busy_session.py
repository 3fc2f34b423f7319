"""A session refuses each turn for one that runs, and none does: the mark of a turn that has ended was left behind.

Source: managers/session_controller.py, which marks a streaming session before its request is queued.
"""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import Rule, at, of_settings, over

_LIMITS = ("SGLANG_REQ_WAITING_TIMEOUT", "SGLANG_REQ_RUNNING_TIMEOUT")


def _find(facts: LogFacts) -> Iterator[Finding]:
    said = facts.remarks.get("busy_session")
    # A pool that leaks while sessions stay open is told by what it leaks.
    if said is None or facts.deaths or facts.leaks:
        return
    running = [
        (line, most)
        for rank in facts.schedulers
        for line, most in zip(rank.series["line"], rank.series["running_max"], strict=True)
        if line and line < said.place.line and most is not None
    ]
    if not running or max(running)[1]:
        return
    limits = [name for name in _LIMITS if name in facts.arguments]
    # A prefill's line counts what ran ahead of it: of a turn that is being read it has none.
    decoded = any(
        rate is not None and line == max(running)[0]
        for rank in facts.schedulers
        for line, rate in zip(rank.series["line"], rank.series["generated_per_s"], strict=True)
    )
    yield Finding(
        rule=RULE.id,
        cause="A session refuses its next turn for one that still runs, and nothing runs on this server: a turn that "
        "was given up, or ran out of time while it waited in the queue, has left its mark on the session, and nothing "
        "takes that back, which is a defect of the release.",
        confidence=Confidence.LIKELY if decoded else Confidence.POSSIBLE,
        evidence=(
            at(facts, said.place, said.text, "the last such refusal"),
            over(facts, f"line {max(running)[0]}", max(running)[1], "#running-req of the last batch line before it"),
            *of_settings(facts, "enable_streaming_session", *limits),
        ),
        ruled_out_if=("a request of that session does run: its client has not read its answer to the end",),
        advice=(
            "a new session for that client (/open_session): the old one stays as it is until the server starts anew",
            f"turns that are not given up while they wait: {' and '.join(limits) or 'no ' + _LIMITS[0]} "
            f"{'unset or longer' if limits else 'set'}, clients that wait longer, room for more requests",
            "a later release, which marks a turn once it runs and clears the mark of one that is aborted; until then "
            "requests without streaming sessions (no --enable-streaming-session)",
        ),
    )


RULE = Rule("busy-session", "a session refuses each turn for one that has ended", _find)
