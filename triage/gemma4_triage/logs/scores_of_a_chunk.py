"""Memory that ran out where a prefill scores each token of its chunk against the whole context before it.

Indexers of sparse attention (DeepSeek's DSA and what follows it) and attention that is not fused lay out such a matrix.
It grows with chunk times context, so a share of memory that one prompt fits in is too small for the next longer one.
"""

from __future__ import annotations

from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern

_SCORES = pattern(
    r"(?i)\w*indexer\w*\.py:|.* \w*(?:index_topk|topk_index|indexer|mqa_logits|candidates|attn_scores|"
    r"attention_scores|naive_attn|sdpa)\w*$"
)
_INNER = 4  # frames
_LEAST = 2048  # tokens


def of_scores(facts: LogFacts, death: Death) -> tuple[str, tuple[str, ...]] | None:
    """Return cause and advice; None if the frames are not of such code."""
    if not any(map(_SCORES.match, death.frames[-_INNER:])):
        return None
    size = facts.settings.get("chunked_prefill_size", "")
    chunk = int(size) if size.isdecimal() else 0
    smaller = (
        f"--chunked-prefill-size {max(_LEAST, chunk // 4)} ({chunk} now)"
        if chunk > _LEAST
        else ("a smaller --chunked-prefill-size (2048)")
    )
    return (
        "The device's memory ran out where a prefill scores every token of its chunk against the whole context (an "
        "indexer of sparse attention, or attention that is not fused): that matrix grows with chunk times context, and "
        "is no part of the pools.",
        (
            f"{smaller}, or a shorter --context-length: their product is its size, so the next longer prompt meets it "
            "again where only the share of memory is changed",
            "a later release, whose code goes through the rows in parts (SGLang 40217)",
        ),
    )
