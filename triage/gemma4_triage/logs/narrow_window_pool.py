"""A pool of the sliding window that is smaller than what one prefill asks of it: such a request never comes in."""

from __future__ import annotations

from typing import NamedTuple

from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.remarks import number_in


class Narrow(NamedTuple):
    """A pool of the sliding window, and the chunk that it cannot hold.

    Attributes:
        tokens: of the pool.
        chunk: that a prefill asks of it at most.
        advice: what to change.
    """

    tokens: int
    chunk: int
    advice: tuple[str, ...]


def narrow(facts: LogFacts) -> Narrow | None:
    """Return the pool and the chunk, where the chunk is the larger; None where it fits or no line tells."""
    tokens = facts.pool_tokens.get("swa") or _noted(facts)
    chunk = facts.settings.get("chunked_prefill_size", "")
    if not tokens or not chunk.isdecimal() or int(chunk) <= tokens:
        return None
    fits = 1 << (tokens.bit_length() - 1)
    ratio = facts.settings.get("swa_full_tokens_ratio", "")
    larger = ""
    if ratio.replace(".", "", 1).isdecimal() and float(ratio):
        larger = f" than {ratio}: from {float(ratio) * int(chunk) / tokens + 0.005:.2f} on a chunk fits"
    return Narrow(
        int(tokens),
        int(chunk),
        (
            f"--chunked-prefill-size {fits if fits < tokens else fits // 2} or less: a prefill asks for no more of "
            "that pool than its chunk and a page",
            f"or a larger --swa-full-tokens-ratio{larger}; or a larger --mem-fraction-static",
            "a later release, which refuses such a request or cuts it in place of holding up the queue (SGLang 31205)",
        ),
    )


def _noted(facts: LogFacts) -> int:
    said = facts.remarks.get("pool_sizes")
    return int(number_in(said.text, "swa") or 0) if said is not None else 0
