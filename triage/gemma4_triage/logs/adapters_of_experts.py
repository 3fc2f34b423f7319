"""What to change where adapters of experts meet attention data parallelism: buffers are sized for one rank's batch."""

from __future__ import annotations

from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern

_OF_ADAPTERS = pattern(r"(?i)\w*(?:lora|sgmv|punica)\w*\.py:|.* \w*(?:lora|sgmv)\w*$")
_OF_EXPERTS = pattern(r"(?i)\w*(?:moe|expert)\w*\.py:|.* \w*(?:moe|expert)\w*$")
_APART = (
    "once without --enable-dp-attention (plain --tp): experts then see the tokens of all ranks together, while the "
    "buffers of adapters are sized for one rank's own batch; or adapters of attention alone "
    "(--lora-target-modules q_proj k_proj v_proj o_proj), or --disable-cuda-graph, where that ends it; then a later "
    "release (SGLang 31525)"
)


_WITHOUT_EP = (
    "once with --ep-size 1 (--tp alone), with the adapters as they are: tokens are sent to experts by numbers of one "
    "rank, or to none (-1), while buffers and kernels of adapters of experts may go by the numbers of all; then a "
    "later release (SGLang 23178)"
)
_EP_FRAMES = pattern(r"(?i)lora|expert|moe|topk")


def beside_expert_parallel(facts: LogFacts, death: Death) -> tuple[str, ...]:
    """Return what to try first where adapters meet expert parallelism; empty unless the server has both."""
    both = facts.settings.get("enable_lora") == "True" or "lora_paths" in facts.arguments
    both = both and facts.settings.get("ep_size", "1") not in ("1", "None")
    near = " ".join((death.message, death.statement, death.path, *death.frames[-4:]))
    return (_WITHOUT_EP,) if both and "lora" in near.lower() and _EP_FRAMES.search(near) else ()


_WITHOUT_DRAFTS = (
    "without --speculative-algorithm, or without adapters: LoRA's kernels count one token for each request in a decode "
    "step, and a step that verifies drafts has several; a later release serves both for some kinds of drafts (NGRAM, "
    "EAGLE3 with --lora-backend csgmv or triton: SGLang 12903)"
)


def beside_drafts(facts: LogFacts, death: Death) -> tuple[str, ...]:
    """Return what to try first where adapters meet drafts, and the frames are of adapters; empty if not so."""
    both = facts.settings.get("enable_lora") == "True" or "lora_paths" in facts.arguments
    both = both and facts.settings.get("speculative_algorithm", "None") != "None"
    return (_WITHOUT_DRAFTS,) if both and any(map(_OF_ADAPTERS.match, death.frames[-4:])) else ()


def apart(facts: LogFacts, death: Death) -> tuple[str, ...]:
    """Return what to try first; empty unless the server has both and the frames are of both."""
    both = facts.settings.get("enable_dp_attention") == "True" and facts.settings.get("dp_size", "1") not in (
        "1",
        "None",
    )
    adapters, experts = (any(map(of.match, death.frames)) for of in (_OF_ADAPTERS, _OF_EXPERTS))
    return (_APART,) if both and adapters and experts else ()
