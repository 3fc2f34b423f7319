"""Prefills come first, and with a steady stream of long prompts the running requests hardly get a token."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts, Place, RankFacts
from gemma4_triage.logs.rule import Rule, at, of_settings, on_rank, over

_GAPS = 3  # decode lines in a row, each behind prefills
_PREFILLS = 4  # between two of them
_TOKENS = 1024  # of each prefill, on the mean
_RUNNING = 8  # requests that wait for their next token
_SLOW = 1.5  # tokens per second and request, below which nobody can read along


class _Gap(NamedTuple):
    place: Place
    prefills: int
    tokens: int
    running: int
    rate: float


def _find(facts: LogFacts) -> Iterator[Finding]:
    for rank in facts.schedulers:
        gaps = _gaps(rank)
        if len(gaps) < _GAPS:
            continue
        slowest = min(gaps, key=lambda gap: gap.rate / gap.running)
        prefills, tokens = sum(gap.prefills for gap in gaps), sum(gap.tokens for gap in gaps)
        yield Finding(
            rule=RULE.id,
            cause=f"Prefills starve the running requests{on_rank(rank.rank)}: prompts that arrive are always taken "
            f"first, and {slowest.running} requests shared {slowest.rate:.0f} tokens/s meanwhile, while others wait.",
            confidence=Confidence.LIKELY,
            evidence=(
                at(facts, slowest.place, round(slowest.rate, 1), f"tokens/s of {slowest.running} running requests"),
                over(
                    facts, "prefills", prefills, f"between {len(gaps)} decode lines in a row, with {tokens} new tokens"
                ),
                *of_settings(facts, "chunked_prefill_size", "max_prefill_tokens", "enable_mixed_chunk"),
            ),
            ruled_out_if=("decode lines without a prefill before them are as slow",),
            advice=(
                "a smaller --chunked-prefill-size: each prefill then holds decoding up for less long",
                "--enable-mixed-chunk, which decodes beside a prefill (not for models that keep states, such as Mamba)",
                "fewer requests at once (a limit at the gateway, --max-running-requests), more servers, or prefill and "
                "decode on servers of their own",
            ),
        )
        return


def _gaps(rank: RankFacts) -> list[_Gap]:
    """Return the longest row of decode lines that were starved; nothing where points stand for several lines."""
    best: list[_Gap] = []
    row: list[_Gap] = []
    prefills = tokens = 0
    names = ("batch_lines", "line", "time", "new_tokens", "running_max", "queued_max", "generated_per_s")
    columns = (rank.series.get(name, ()) for name in names)
    for batch_lines, line, time, new, running, queued, rate in zip(*columns, strict=True):
        if batch_lines > 1:
            return []
        if rate is None:
            prefills, tokens = prefills + 1, tokens + new
            continue
        starved = (
            prefills >= _PREFILLS
            and tokens >= _TOKENS * prefills
            and queued
            and (running or 0) >= _RUNNING
            and rate < _SLOW * running
        )
        row = [*row, _Gap(Place(line, time), prefills, tokens, running, rate)] if starved else []
        best = max(best, row, key=len)
        prefills = tokens = 0
    return best


RULE = Rule("prefill-starves-decode", "prefills hold up the running requests", _find)
