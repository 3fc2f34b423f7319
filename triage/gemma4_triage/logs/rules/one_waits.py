"""A request waits for minutes beside a free place and an empty pool: what admits requests does not look again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs import said_in_notes
from gemma4_triage.logs.facts import LogFacts, Place, RankFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import Rule, at, of_settings, on_rank, remarked
from gemma4_triage.logs.rules.queue_stands import limit_of

_LINES, _SECONDS = 3, 30.0
_LONG_S = 60.0  # between two lines, where a note says that one waits for the end of another
_EMPTY = 0.5  # of the pool in use at most
_CHUNKED = pattern(r"chunked_prefill_size=(\d+)")


def _find(facts: LogFacts) -> Iterator[Finding]:
    limit = limit_of(facts)
    staged = facts.settings.get("pp_size", "1") not in ("1", "None")
    if limit is None or staged or facts.settings.get("disaggregation_mode", "null") not in ("null", "None"):
        return
    note = facts.remarks.get(said_in_notes.NAME)
    noted = note is not None and said_in_notes.waits_its_turn(note)
    for rank in facts.schedulers:
        if (stretch := _stretch(rank, limit, noted)) is not None:
            yield _tell(facts, rank, stretch, limit)
            return


def _stretch(rank: RankFacts, limit: int, noted: bool) -> list[dict] | None:
    """Return the longest row of decode lines beside which one waits, a place is free and nothing is prefilled."""
    points = [dict(zip(rank.series, values, strict=True)) for values in zip(*rank.series.values(), strict=True)]
    longest: list[dict] = []
    row: list[dict] = []
    for point in points:
        full, window = point["full_usage_max"], point["swa_usage_max"] or 0.0
        free = full is not None and max(full, window) <= _EMPTY and 0 < (point["running_max"] or 0) < limit
        if point["batch_lines"] == 1 and free and point["queued_max"] and not point["new_tokens"]:
            row = [*row, point]
            longest = max(longest, row, key=len)
        else:
            row = []
    if len(longest) < _LINES - noted or rank.retractions.events:
        return None
    try:
        begin, end = (datetime.fromisoformat(longest[place]["time"]) for place in (0, -1))
    except (TypeError, ValueError):
        return None
    least = _SECONDS if len(longest) >= _LINES else _LONG_S
    return longest if (end - begin).total_seconds() >= least else None


def _tell(facts: LogFacts, rank: RankFacts, stretch: list[dict], limit: int) -> Finding:
    first, last = stretch[0], stretch[-1]
    running, waiting = int(last["running_max"]), int(last["queued_max"])
    usage = max(point["full_usage_max"] for point in stretch)
    pools = facts.remarks.get("pools")
    chunk = found[1] if pools is not None and (found := _CHUNKED.search(pools.text)) else ""
    now = f" than {chunk}" if chunk else ""
    return Finding(
        rule=RULE.id,
        cause=f"{waiting} wait{'s' * (waiting == 1)}{on_rank(rank.rank)} while {running} of {limit} places are taken "
        f"and the pool is at most {usage:.0%} full, and no prefill runs: as where the scheduler takes its batch for "
        "full and does not look again until a request ends. The pool is not at fault.",
        confidence=Confidence.POSSIBLE,
        evidence=(
            at(facts, Place(first["line"], first["time"]), running, "requests running, the first such line"),
            at(facts, Place(last["line"], last["time"]), running, "requests running, the last such line"),
            *remarked(facts, "pools", "the limit at the start (max_running_requests)"),
            *of_settings(facts, "max_running_requests", "max_mamba_cache_size", "lora_paths", "grammar_backend"),
        ),
        ruled_out_if=(
            "the one that waits needs what is short: an adapter, a grammar that compiles, a state (mamba usage near 1)",
        ),
        advice=(
            f"--max-running-requests one or two above the wanted number ({limit + 2} in place of {limit}): the last "
            "place is what is held for taken",
            f"a larger --chunked-prefill-size{now}, so that a prompt is not cut while the last place is given away; or "
            "a later release, which looks again at each step (SGLang 35609)",
            "adapters (--max-loras-per-batch) and the cap of states (--max-mamba-cache-size), where those are in use",
        ),
        upstream=("SGLang 35537",),
    )


RULE = Rule("one-waits", "a request waits beside a free place and an empty pool", _find)
