"""What a scheduler's lines of a log add up to, in words. Shared by the terminal view and the report."""

from __future__ import annotations

from gemma4_dumps.wording import number_of
from gemma4_triage.logs.rank import RankFacts


def prefill_text(rank: RankFacts) -> str:
    """Lines and tokens."""
    cached = number_of(rank.cached_tokens, "cached token")
    return f"{number_of(rank.prefill_lines, 'line')}, {rank.new_tokens} new and {cached}"


def retractions_text(rank: RankFacts) -> str:
    """Requests, events, and what it cost; nothing if there were none."""
    seen = rank.retractions
    if not seen.events:
        return ""
    requests, events = number_of(seen.requests, "request"), number_of(seen.events, "event")
    return f"{requests} in {events}, {number_of(seen.recomputed_tokens, 'token')} prefilled again"
