"""What to do where a check asks for something that a later line refuses too: the other ways out of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern

_LONGEST = 220
LACKING = pattern(
    r"(?i)(?:\bnot|n't|\bun|only)[\s-]?(?:yet |been |currently |been yet )?(?:support|implement|available|compatible)"
)
_VALUE = pattern(r"\b(?<!-)[A-Za-z]+(?:_[A-Za-z0-9]+)+\b")
OF_CUDA = pattern(r"(?i)only (?:supported |available |works )?on (?:NVIDIA|CUDA)|CUDA (?:devices|only)")
_NOT_HERE = " (this server runs on another platform, such as ROCm)"
WITHOUT_BUFFER = (
    "--disable-radix-cache, or the strategy no_buffer with --page-size 1, on a device other than NVIDIA's; drafts with "
    "either need the cache off; then a later release"
)
_WAYS_OUT = (
    (pattern(r"(?i)radix cache|prefix cach"), "--disable-radix-cache, with everything else as it was at first"),
    (pattern(r"(?i)speculative|draft"), "without --speculative-algorithm"),
    (pattern(r"(?i)overlap schedul"), "--disable-overlap-schedule"),
    (pattern(r"(?i)chunked[- ]prefill"), "--chunked-prefill-size -1"),
    (pattern(r"(?i)cuda graph"), "--disable-cuda-graph"),
    (pattern(r"(?i)hierarchical cache|hicache"), "without --enable-hierarchical-cache"),
    (pattern(r"(?i)dp[- ]attention"), "without --enable-dp-attention"),
)
"""What the words of a check name, and how to do without it."""


def refused_too(facts: LogFacts, death: Death, asked: str) -> Death | None:
    """Return the later refusal of what a check asked for, where somebody tried that; None if there is none."""
    words = {word for word in _VALUE.findall(asked) if not word.isupper()}
    return next(
        (
            one
            for one in facts.deaths
            if one.place.line > death.place.line
            and LACKING.search(one.message)
            and words & set(_VALUE.findall(one.message))
        ),
        None,
    )


def also_refused(said: str, asked: re.Match[str] | None, tried: Death) -> Iterator[str]:
    """Yield the other ways out of a check whose own was tried and refused."""
    rest = said.replace(asked[0], "") if asked else said
    ways = [way for words, way in _WAYS_OUT if words.search(rest)]
    yield (
        f"not what it asks for, which line {tried.place.line} refuses here: {tried.message[:_LONGEST]}"
        f"{_NOT_HERE if OF_CUDA.search(tried.message) else ''}"
    )
    if ways:
        yield f"out of both: {'; or '.join(ways)}; then a later release, which may settle it by itself"
