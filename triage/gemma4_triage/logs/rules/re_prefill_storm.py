"""Much of what is prefilled had been computed before, and was lost to retraction."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts, RankFacts
from gemma4_triage.logs.rule import Rule, on_rank, over

SHARE = 0.2
REQUESTS = 5
EVENTS = 2
"""A server that retracts once, however many, and goes on, does what it is made for."""


def _find(facts: LogFacts) -> Iterator[Finding]:
    storms = [rank for rank in facts.schedulers if _is_storm(rank)]
    if not storms:
        return
    rank = max(storms, key=lambda rank: rank.retractions.recomputed_tokens)
    seen = rank.retractions
    share = seen.recomputed_tokens / rank.new_tokens
    where = "prefill lines after retractions"
    yield Finding(
        rule=RULE.id,
        cause=f"{share:.0%} of all prefilled tokens{on_rank(rank.rank)} went into requests that had been retracted.",
        # Which request a prefill line is about, it does not say: others may have waited too.
        confidence=Confidence.LIKELY,
        evidence=(
            over(facts, where, seen.recomputed_tokens, "#new-token: prefilled again"),
            over(facts, where, seen.recomputed_cached_tokens, "#cached-token: found in the prefix cache instead"),
            over(facts, where, seen.recomputed_requests, "requests among them"),
            over(facts, "all prefill lines", rank.new_tokens, "#new-token"),
        ),
        ruled_out_if=("fresh requests of the same length came in at the same time",),
        next_commands=("gemma4-triage pools --config CONFIG --kv-mem 40GiB --workload 64x8000+1000",),
    )


def _is_storm(rank: RankFacts) -> bool:
    seen = rank.retractions
    if seen.events < EVENTS:
        return False
    return seen.recomputed_requests >= REQUESTS and seen.recomputed_tokens >= SHARE * rank.new_tokens > 0


RULE = Rule("re-prefill-storm", "retracted requests are most of the prefill", _find)
