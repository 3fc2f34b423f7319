"""Drafts are accepted less than before.

Not told where the server leaves drafts out of some steps: its accept length counts those, and falls with each batch.
"""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import Rule, of_drop, on_rank, worst_drop
from gemma4_triage.logs.started import Started

_OF_STATES = (
    "this model keeps states: as their cache fills, drafts may begin from another state than the model "
    "(SGLang 36537). --mamba-radix-cache-strategy extra_buffer_lazy where the release has it, else once with "
    "--disable-radix-cache"
)

_OF_UPDATES = (
    "the cache was flushed while it ran, as updates of weights do: update_weights_from_distributed leaves the draft's "
    "weights as they were (SGLang 27718); send them from disk or by tensor, or train and restart with the draft"
)


def _find(facts: LogFacts) -> Iterator[Finding]:
    found = worst_drop(facts, lambda rank: rank.accept_drop)
    if found is None or "draft_policy" in facts.remarks:
        return
    drop, rank = found
    start = Started(facts)
    states = start.keeps_states and not start.on("disable_radix_cache")
    evidence = of_drop(facts, drop, "accept length", 2)
    yield Finding(
        rule=RULE.id,
        cause=f"Accept length fell to {drop.ratio:.0%} of what it was{on_rank(rank.rank)}: drafts read other keys than "
        "before, or the text became harder to guess.",
        confidence=Confidence.POSSIBLE,
        evidence=tuple(evidence),
        advice=(
            "send one prompt of before again: a length as then says that the prompts are others now",
            *((_OF_STATES,) if states else ()),
            *((_OF_UPDATES,) if "flushed" in facts.remarks else ()),
            "if it stays low, restart: where weights were updated or memory was released meanwhile "
            "(release_memory_occupation), the draft's own weights may not have come back",
        ),
        ruled_out_if=("the prompts changed in kind at that time", "the same prompts give the same accept length again"),
        next_commands=(
            "gemma4-triage serve --debug log -- --model-path MODEL",
            "gemma4-triage repro e4b-trtllm --arm fault-silent",
        ),
        upstream=("SGLang 25103", "SGLang 26957"),
    )


RULE = Rule("accept-length-drop", "drafts are accepted less than before", _find)
