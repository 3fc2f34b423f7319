"""One data-parallel rank has most of the requests."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import Rule, of_settings, over

_LINES = 8  # batch lines of a rank that decoded
_BUSY, _TIMES = 16, 4  # requests of the fullest rank, and how often it has the middle one's


def _uneven(facts: LogFacts) -> Iterator[Finding]:
    means = []
    for rank in facts.schedulers:
        running = [value for value in rank.series["running_max"] if value is not None]
        if rank.decode_lines >= _LINES and rank.rank.startswith("DP"):
            means.append((sum(running) / len(running), rank))
    means.sort(key=lambda one: one[0])
    if len(means) < 2:
        return
    (least, idle), (most, busy) = means[0], means[-1]
    middle = means[(len(means) - 1) // 2][0]
    if most < _BUSY or most < _TIMES * max(middle, 1):
        return
    together = facts.settings.get("enable_dp_attention") == "True"
    yield Finding(
        rule=RULE.id,
        cause=f"Requests are spread unevenly over data-parallel ranks: {busy.rank} runs {most:.0f} on the mean, "
        f"{idle.rank} {least:.0f}"
        + (", and with attention data parallelism every step waits for the fullest." if together else "."),
        confidence=Confidence.LIKELY,
        evidence=(
            over(facts, busy.rank, round(most, 1), "requests running, mean of its batch lines"),
            over(facts, "the middle one of the ranks", round(middle, 1), "requests running, the same"),
            *of_settings(facts, "dp_size", "load_balance_method", "enable_dp_attention"),
        ),
        ruled_out_if=("the clients name a rank (data_parallel_rank), or one long conversation stays on its rank",),
        advice=(
            "--load-balance-method total_tokens or total_requests (minimum_tokens, shortest_queue earlier), where the "
            "release has them: round_robin counts neither lengths nor what still runs",
            "the router in front (--dp-aware, or one address for each rank): a policy that holds prefixes together "
            "(cache_aware) sends them all to one rank unless its --balance-abs-threshold is low",
            "a later release; on one rank alone a request that is much longer than the others does the same",
        ),
        upstream=("SGLang 6872",),
    )


RULE = Rule("uneven-ranks", "requests are spread unevenly over data-parallel ranks", _uneven)
