"""The same server begins again and again, and no line says why the ones before ended."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.alarm_words import FATAL
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import Rule, at
from gemma4_triage.logs.starts_in_a_row import NAME, lacks_ready

_OF_A_BENCHMARK = ("benchmark", "bench_prefill", "first_bench_prefill", "bench_client")


def _find(facts: LogFacts) -> Iterator[Finding]:
    again = facts.remarks.get(NAME)
    if again is None or facts.deaths or any(alarm.kind in FATAL for alarm in facts.alarms):
        return
    up = any(name in facts.remarks for name in ("ready", "http_ready"))
    if any(name in facts.remarks for name in _OF_A_BENCHMARK) or (facts.served and not up):
        # A script's Engine, or a benchmark, comes and goes by itself.
        return
    if up and lacks_ready(again) and facts.served and facts.starts <= 2:
        return
    count = again.text.partition(" ")[0]
    before = ", and none of those before the last was ready" if lacks_ready(again) else ""
    yield Finding(
        rule=RULE.id,
        cause=f"Unknown cause: the same server began {count} times{before}, and no line says why the ones before "
        "ended.",
        confidence=Confidence.POSSIBLE,
        evidence=(at(facts, again.place, again.text, "the last start"),),
        ruled_out_if=("somebody, or a test, restarted it each time, in a way that leaves no line",),
        advice=(
            "the exit code of the one before: docker inspect (State.ExitCode, OOMKilled), kubectl describe pod (Last "
            "State: Reason, Exit Code; Liveness probe failed), systemctl status; 137 is SIGKILL, 139 a crash in native "
            "code",
            "the end of its own output: kubectl logs --previous, docker logs, journalctl -u, with stderr of every rank",
            "dmesg -T | grep -iE 'oom|xid|segfault' on the host, at the time of the last line before each start",
            "if a probe ends it while it loads: a startup probe that waits longer than a start takes",
        ),
    )


RULE = Rule("starts-again", "a server begins again and no line says why", _find, alarms=frozenset({"health"}))
