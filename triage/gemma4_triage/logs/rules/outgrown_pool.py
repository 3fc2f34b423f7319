"""A few requests, each very long, fill the pool: one of them is retracted, and more room alone would not last."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts, RankFacts
from gemma4_triage.logs.remarks import number_in
from gemma4_triage.logs.rule import PLAN_POOLS, Rule, at, on_rank, over, remarked, usage_text
from gemma4_triage.logs.rules import binding_pool, retraction_thrash

FEW = 4
"""Requests. More of them share a pool as any load does."""
_FULL = 0.95


def _find(facts: LogFacts) -> Iterator[Finding]:
    if any(binding_pool.binding_pool(rank) for rank in facts.schedulers) or any(retraction_thrash.RULE.find(facts)):
        return
    for rank in facts.schedulers:
        worst, running = rank.retractions.worst, _running(rank)
        if worst is None or (worst.full or 0) < _FULL or (worst.swa or 0) > (worst.full or 0):
            continue
        if running is None or not 0 < running <= FEW:
            continue
        pools = facts.remarks.get("pools")
        size = None if pools is None else number_in(pools.text, "max_total_num_tokens")
        each = f", some {worst.full * size / running:.0f} tokens each" if size and worst.full else ""
        yield Finding(
            rule=RULE.id,
            cause=f"{running:.0f} request{'s' * (running > 1)} alone fill{'s' * (running == 1)} the pool"
            f"{on_rank(rank.rank)}{each}, and one is retracted: prompts or answers are longer than it was planned for.",
            confidence=Confidence.LIKELY,
            evidence=(
                at(facts, worst.place, usage_text(worst.full, worst.swa), "the pool before the retraction"),
                over(facts, "batch line before it", int(running), "requests running (#running-req)"),
                *remarked(facts, "pools", "the pool, and the longest prompt that is taken in"),
            ),
            ruled_out_if=("the requests end by themselves soon after, and answers of that length are wanted",),
            advice=(
                "a max_tokens for every request: one that has none, or whose client asks to ignore the end of text "
                "(benchmarks), runs to the end of the context",
                "a --context-length that the pool holds several times; --max-running-requests no higher than fit",
                "a larger pool: --mem-fraction-static, more GPUs (--tp), --kv-cache-dtype fp8_e4m3",
            ),
            next_commands=(PLAN_POOLS,),
            upstream=("SGLang 2746",),
        )
        return


def _running(rank: RankFacts) -> float | None:
    """Return the most requests that ran in the points of the series with a retraction; None if it shows none."""
    series = rank.series
    rows = zip(series["running_max"], series["retracted_requests"], strict=True)
    found = [running for running, retracted in rows if retracted and running is not None]
    return max(found, default=None)


RULE = Rule("outgrown-pool", "a few requests fill the pool", _find)
