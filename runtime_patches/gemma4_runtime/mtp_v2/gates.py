"""What MTP under spec v2 does not serve. Each is refused at start, with the reason, before a model is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.environ import envs

from gemma4_runtime.errors import NotServed
from gemma4_runtime.settings import MTP_V2


def _wide_tree_off_triton(arguments: Any) -> bool:
    prefill, decode = arguments.get_attention_backends()
    draft = arguments.speculative_draft_attention_backend or decode
    return (arguments.speculative_eagle_topk or 1) > 1 and {prefill, decode, draft} != {"triton"}


REFUSALS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    (
        "--enable-dp-attention",
        lambda arguments: arguments.enable_dp_attention,
        "ranks without requests would have to draft along with the others, and the assistant has no such path",
    ),
    (
        "--enable-hierarchical-cache",
        lambda arguments: arguments.enable_hierarchical_cache,
        "it would copy the assistant's KV pool to the host, and the assistant has none: it reads the target's",
    ),
    (
        "--disaggregation-mode",
        lambda arguments: arguments.disaggregation_mode != "null",
        "a prefill server would send the assistant's KV pool, and the assistant has none: it reads the target's",
    ),
    (
        "--speculative-adaptive",
        lambda arguments: arguments.speculative_adaptive,
        "the assistant's attention and its CUDA graphs are built for one number of steps",
    ),
    (
        "--enable-custom-logit-processor",
        lambda arguments: arguments.enable_custom_logit_processor,
        "verification under spec v2 does not call logit processors, so answers would ignore them",
    ),
    (
        "--speculative-eagle-topk above 1",
        _wide_tree_off_triton,
        "only the triton attention backend can draft and verify a tree that is wider than one token; with another for "
        "prefill, decode or draft, tokens of one step would see each other",
    ),
    (
        "SGLANG_ENABLE_OVERLAP_PLAN_STREAM",
        lambda _: envs.SGLANG_ENABLE_OVERLAP_PLAN_STREAM.get(),
        "a verification would be planned beside the one before it, whose tables it overwrites: what the host waited "
        "for in between, it waits for no more",
    ),
)


def refuse_what_is_not_served(arguments: Any) -> None:
    """arguments: SGLang's ServerArgs, with the attention backends chosen.

    Raises:
        NotServed: naming every argument that is not served, and why.
    """
    found = [f"{name}: {reason}" for name, refused, reason in REFUSALS if refused(arguments)]
    if found:
        raise NotServed(
            f"mtp-v2 does not serve {'; nor '.join(found)}. Leave that out, or set {MTP_V2}=0 for MTP without overlap."
        )
