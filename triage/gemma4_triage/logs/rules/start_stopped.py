"""Somebody, or a probe, stopped a server before it was ready."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import Rule, at, remarked

_LONG_S = 60.0
"""A start that somebody ends sooner was a mistake of theirs."""


def _find(facts: LogFacts) -> Iterator[Finding]:
    stopped, deaths = facts.remarks.get("sigterm"), facts.deaths
    if stopped is None or "ready" in facts.remarks or facts.served or deaths:
        return
    begun = facts.remarks.get("first_before_weights") or facts.remarks.get("before_weights")
    compiles = facts.remarks.get("deep_gemm")
    seconds = _gap(facts.first_time, stopped.place.time)
    again = begun is not None and facts.remarks["before_weights"].place.line > stopped.place.line
    if not (again or compiles or (begun and seconds is not None and seconds >= _LONG_S)):
        return
    lasted = f" after {seconds:.0f} s" if seconds is not None else ""
    what = ", while DeepGEMM compiled its kernels" if compiles else ""
    then = "; it was started again" if again else ""
    yield Finding(
        rule=RULE.id,
        cause=f"The server was stopped from outside (SIGTERM){lasted}, before it was ready{what}{then}. Nothing in it "
        "failed.",
        confidence=Confidence.LIKELY,
        evidence=(
            at(facts, stopped.place, stopped.text, "the stop"),
            *remarked(facts, "deep_gemm", "what it was doing"),
            *remarked(facts, "before_weights", "the last load of weights"),
        ),
        ruled_out_if=("somebody stopped it by hand",),
        advice=(
            *(
                (
                    "python3 -m sglang.compile_deep_gemm with the server's own arguments compiles beforehand; keep its "
                    "cache on a volume (~/.cache/deep_gemm, SGLANG_DG_CACHE_DIR)",
                )
                if compiles
                else ()
            ),
            "a startup probe that waits longer than a start takes (Kubernetes: startupProbe, initialDelaySeconds; "
            "compose: start_period); kubectl describe pod says which probe failed",
            "keep weights and caches on a volume: what is downloaded or compiled is otherwise lost with the container",
            *(("SGLANG_JIT_DEEPGEMM_PRECOMPILE=0 starts at once, and compiles while it serves",) if compiles else ()),
        ),
    )


def _gap(begin: str, end: str) -> float | None:
    try:
        return (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds()
    except (TypeError, ValueError):
        return None


RULE = Rule("start-stopped", "a server was stopped before it was ready", _find, alarms=frozenset({"health", "killed"}))
