"""Prompts that the prefix cache used to hold are prefilled anew."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding, Kind
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import Rule, at, of_drop, on_rank, remarked, usage_text

CACHED_BEFORE = 0.3


def _find(facts: LogFacts) -> Iterator[Finding]:
    drops = [(drop, rank) for rank in facts.schedulers if (drop := rank.cached_share_drop) is not None]
    lost = [(drop, rank) for drop, rank in drops if drop.before >= CACHED_BEFORE]
    if not lost:
        return
    drop, rank = min(lost, key=lambda found: found[0].ratio)
    evidence = of_drop(facts, drop, "cached share of prompt tokens, #cached-token / all", 3)
    if rank.peaks:
        peak = max(rank.peaks.values(), key=lambda usage: max(usage.full or 0, usage.swa or 0))
        usage = usage_text(peak.full, peak.swa)
        evidence.append(at(facts, peak.place, usage, "the fullest that the pools were, without what can be evicted"))
    if "retracts_on_purpose" in facts.remarks:
        yield Finding(
            rule=RULE.id,
            cause=f"Requests are retracted on purpose{on_rank(rank.rank)}, and prefilled again: SGLANG_TEST_RETRACT is "
            "set, which is for tests.",
            confidence=Confidence.CERTAIN,
            kind=Kind.NOTE,
            evidence=(*remarked(facts, "retracts_on_purpose", "the last of them"), *evidence),
            advice=("unset SGLANG_TEST_RETRACT on a server that is to serve",),
        )
        return
    yield Finding(
        rule=RULE.id,
        cause=f"Prompts that were in the prefix cache are prefilled again{on_rank(rank.rank)}: it lost them, or "
        "other prompts came.",
        confidence=Confidence.POSSIBLE,
        evidence=tuple(evidence),
        ruled_out_if=("the prompts since then share no prefix with those before", "the cache was flushed on purpose"),
        next_commands=("gemma4-triage pools --config CONFIG --kv-mem 40GiB --workload 64x8000+1000",),
    )


RULE = Rule("prefix-cache-loss", "prompts that were cached are prefilled again", _find)
