"""Requests are thrown out of a full pool again and again."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Burst, LogFacts, RankFacts
from gemma4_triage.logs.rule import Rule, at, on_rank, over, usage_text
from gemma4_triage.logs.rules import swa_not_evicted

WITHIN_S = 60
WITHIN_BATCH_LINES = 100  # where the log has no times


_OF_A_SPLIT = (
    "a later release on both servers, which takes retracted requests up again (after 0.4.7)",
    "until then room enough that none is retracted: fewer requests at once (--max-running-requests), a larger "
    "--mem-fraction-static and --num-reserved-decode-tokens on the decode server",
)

_FULL = 0.9  # of a pool, by the batch line before a retraction


def _find(facts: LogFacts) -> Iterator[Finding]:
    old = facts.remarks.get("old_retraction")
    if old is not None and facts.settings.get("disaggregation_mode") == "decode":
        yield Finding(
            rule=RULE.id,
            cause="A decode server of a split retracted requests, and this release does not take them up again: they, "
            "and what waits behind them, stand for ever.",
            confidence=Confidence.LIKELY,
            evidence=(at(facts, old.place, old.text, "the last retraction"),),
            advice=_OF_A_SPLIT,
            upstream=("SGLang 6857",),
        )
        return
    thrashing = [rank for rank in facts.schedulers if _thrashes(rank.retractions.burst)]
    if not thrashing:
        return
    rank = max(thrashing, key=lambda rank: rank.retractions.requests)
    seen, burst = rank.retractions, rank.retractions.burst
    if burst is None or seen.first is None or seen.last is None:
        return
    binding = seen.binding or {}
    pool = max(("swa", "full"), key=lambda name: binding.get(name, 0))
    which = f"The {pool} pool" if binding.get(pool) else "A pool"
    evidence = [
        at(
            facts,
            burst.first,
            burst.events,
            f"retractions{on_rank(rank.rank)} by line {burst.last.line}, {_span(burst)}",
        ),
        over(facts, f"lines {seen.first.line} to {seen.last.line}", seen.requests, "requests retracted in all"),
    ]
    if seen.worst is not None:
        usage = usage_text(seen.worst.full, seen.worst.swa)
        evidence.append(at(facts, seen.worst.place, usage, "the fullest pools before a retraction"))
    yield Finding(
        rule=RULE.id,
        cause=f"{which} is too small for what runs: requests are retracted, wait, and start again.",
        confidence=_confidence(rank),
        evidence=tuple(evidence),
        ruled_out_if=() if _was_full(rank) else ("SGLANG_TEST_RETRACT was set",),
        advice=tuple(
            f"once without --{name.replace('_', '-')}: what it keeps may not be freed when the pool is full"
            for name in ("enable_hierarchical_cache", "enable_prefill_cp")
            if facts.settings.get(name) == "True"
        ),
        next_commands=("gemma4-triage pools --config CONFIG --kv-mem 40GiB --workload 64x8000+1000",),
    )


def _confidence(rank: RankFacts) -> Confidence:
    """Return how sure it is that a pool is too small: one request that fills the SWA pool alone has another cause."""
    if swa_not_evicted.of_rank(rank):
        return Confidence.POSSIBLE
    return Confidence.CERTAIN if _was_full(rank) else Confidence.LIKELY


def _was_full(rank: RankFacts) -> bool:
    """Return whether a pool was all but full as requests were retracted; a test's setting has it done at any time."""
    worst = rank.retractions.worst
    return worst is not None and max(worst.full or 0, worst.swa or 0) >= _FULL


def _thrashes(burst: Burst | None) -> bool:
    if burst is None:
        return False
    return burst.batch_lines <= WITHIN_BATCH_LINES if burst.seconds is None else burst.seconds <= WITHIN_S


def _span(burst: Burst) -> str:
    return f"{burst.batch_lines} batch lines" if burst.seconds is None else f"{burst.seconds:.0f} s"


RULE = Rule("retraction-thrash", "requests are retracted again and again", _find)
