"""The words that the terminal view and the report say of a log and of its schedulers."""

from __future__ import annotations

from gemma4_dumps.wording import number_of
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rank import RankFacts


def time_text(facts: LogFacts) -> str:
    """Return from when to when a log goes, and how many servers started in it."""
    return f"{facts.first_time} to {facts.last_time}, {number_of(facts.starts, 'server start')}"


def pools_text(facts: LogFacts) -> str:
    """Return how many tokens each pool holds; empty if the log does not say so."""
    return ", ".join(f"{pool} {number_of(tokens, 'token')}" for pool, tokens in facts.pool_tokens.items())


def problem_text(facts: LogFacts) -> str:
    """Return why the reading of a log ended early; only for a log where it did."""
    return f"{facts.problem}; what came before is counted"


def prefill_text(rank: RankFacts) -> str:
    """Return how many prefill lines there were, and their tokens."""
    cached = number_of(rank.cached_tokens, "cached token")
    return f"{number_of(rank.prefill_lines, 'line')}, {rank.new_tokens} new and {cached}"


def retractions_text(rank: RankFacts) -> str:
    """Return how many requests were retracted, how often, and what it cost; empty if none was."""
    seen = rank.retractions
    if not seen.events:
        return ""
    requests, events = number_of(seen.requests, "request"), number_of(seen.events, "event")
    return f"{requests} in {events}, {number_of(seen.recomputed_tokens, 'token')} prefilled again"
