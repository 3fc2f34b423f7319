"""The SWA pool is full with one request running: what lies behind the window is not freed.

One request needs its window, a chunk and its drafts of the SWA pool, however long it is. A pool that it fills alone is
no question of the ratio between the pools.
"""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts, RankFacts
from gemma4_triage.logs.rank import APART, PRESSED_AT
from gemma4_triage.logs.rule import Rule, at, of_settings, on_rank, over, usage_text

_POINTS = 3  # of the series, that is at least as many batch lines
_MANY_TOKENS = 8192  # a pool of more holds any window and chunk that models here have
_WIDEST = 4096  # tokens of a sliding window


def _find(facts: LogFacts) -> Iterator[Finding]:
    for rank in facts.schedulers:
        alone = alone_and_full(rank)
        if alone < _POINTS:
            continue
        peak = rank.peaks["swa"]
        tokens = facts.pool_tokens.get("swa")
        chunk = _longest_chunk(facts, rank)
        large = tokens is not None and tokens >= max(_MANY_TOKENS, chunk + _WIDEST)
        short = tokens is not None and tokens < chunk + _WIDEST
        size = [over(facts, "SWA pool", tokens, "its tokens, by the log")] if tokens is not None else []
        yield Finding(
            rule=RULE.id,
            cause=f"The SWA pool is full with one request running{on_rank(rank.rank)}: "
            + (
                f"a chunk of {chunk:.0f} tokens and a window take most of its {tokens:.0f}, or tokens behind the "
                "window are not freed."
                if short
                else "tokens behind its window are not freed. The ratio of the pools is not the cause."
            ),
            confidence=Confidence.CERTAIN if large else Confidence.POSSIBLE if short else Confidence.LIKELY,
            evidence=(
                at(facts, peak.place, usage_text(peak.full, peak.swa), "where swa was fullest"),
                over(facts, "series", alone, f"points with at most 1 request running and swa at {PRESSED_AT} or more"),
                *size,
                *of_settings(facts, "speculative_algorithm", "chunked_prefill_size", "disaggregation_mode"),
            ),
            ruled_out_if=() if large else ("the SWA pool is smaller than one window and one chunk of a prefill",),
            advice=(
                *(
                    (
                        "a smaller --chunked-prefill-size, or a larger --swa-full-tokens-ratio: the pool has to hold a "
                        "chunk beside the window",
                    )
                    if short
                    else ()
                ),
                "once without drafts, once with --disable-overlap-schedule: which of them lets the pool empty again",
            ),
            next_commands=("gemma4-triage serve --debug 1 -- --model-path MODEL", "gemma4-triage audit --live"),
        )
        return


def _longest_chunk(facts: LogFacts, rank: RankFacts) -> float:
    """Return the most tokens that one prefill took, or may take where none is shown; 0 where the log says neither."""
    chosen = facts.settings.get("chunked_prefill_size", facts.arguments.get("chunked_prefill_size", ""))
    took = max((new or 0 for new in rank.series.get("new_tokens", ())), default=0)
    return float(took) or (float(chosen) if chosen.isdecimal() else 0.0)


def of_rank(rank: RankFacts) -> bool:
    """Say whether this rule and no other is told of a scheduler's SWA pool."""
    return alone_and_full(rank) >= _POINTS


def alone_and_full(rank: RankFacts) -> int:
    """Return in how many points of the series one request at most ran while the SWA pool alone was full."""
    series = rank.series
    rows = zip(
        series.get("running_max", ()), series.get("full_usage_max", ()), series.get("swa_usage_max", ()), strict=True
    )
    return sum(
        running is not None and running <= 1 and swa is not None and swa >= PRESSED_AT and swa - (full or 0) >= APART
        for running, full, swa in rows
    )


RULE = Rule("swa-not-evicted", "the SWA pool is full with one request running", _find)
