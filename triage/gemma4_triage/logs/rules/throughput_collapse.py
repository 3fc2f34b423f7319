"""Decoding became slow with as many requests running."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import Rule, of_drop, on_rank, worst_drop


def _find(facts: LogFacts) -> Iterator[Finding]:
    found = worst_drop(facts, lambda rank: rank.throughput_drop)
    if found is None:
        return
    drop, rank = found
    evidence = of_drop(facts, drop, "tokens/s of decode lines without a prefill before them", 1)
    yield Finding(
        rule=RULE.id,
        cause=f"Decoding fell to {drop.ratio:.0%} of its throughput{on_rank(rank.rank)}, with at least half of the "
        "largest batch running and no prefill in between.",
        confidence=Confidence.POSSIBLE,
        evidence=tuple(evidence),
        advice=(
            "hold accept length, running requests and sequence lengths of before and after against each other",
            "nvidia-smi dmon meanwhile: clocks (throttling), another process, or memory near its end",
        ),
        ruled_out_if=(
            "sequences became that much longer",
            "another process took the device or the CPU",
            "accept length fell by as much",
        ),
        next_commands=("gemma4-triage doctor",),
    )


RULE = Rule("throughput-collapse", "decoding became slow with as many requests running", _find)
