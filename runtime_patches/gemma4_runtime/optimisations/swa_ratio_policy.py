"""A server's arguments choose the ratio between its two pools, unless the user did.

Two hooks. `ServerArgs.__post_init__` runs where the user's words arrive: the command line, a config file and
`Engine(...)` all end in `ServerArgs(...)`. A ratio that nobody gave is the very float that is the field's default;
argparse hands the same object on. A given 0.8 is another object. Python keeps that apart in every release that this
runs on, a pickle does not, so the answer is written down before the arguments travel to the scheduler.

`ModelRunner._profile_available_bytes` returns what the pools may have, right before SGLang reads the ratio.
"""

from __future__ import annotations

from typing import Any

from gemma4_runtime.optimisations.pool_decisions import decide, draft_reason
from gemma4_runtime.pools.arithmetic import TokenBytes
from gemma4_runtime.pools.ratio_policy import Start, choose
from gemma4_runtime.pools.serving import Serving

OP = "swa-ratio-policy"
GIVEN = "gemma4_triage_swa_ratio_given"
"""Attribute of ServerArgs: whether the user gave the ratio. No field: SGLang copies and prints fields."""


def before_post_init(arguments: Any, **_unknown: Any) -> None:
    """Run before `ServerArgs.__post_init__`, which changes arguments."""
    setattr(arguments, GIVEN, arguments.swa_full_tokens_ratio is not type(arguments).swa_full_tokens_ratio)


def after_profile(available_bytes: int, runner: Any, *args: Any, **kwargs: Any) -> None:
    """Run after `ModelRunner._profile_available_bytes`: choose, and let SGLang size the pools with it."""
    if not str(runner.model_config.hf_config.architectures[0]).startswith("Gemma4"):
        return
    arguments = runner.server_args
    if reason := _reason(runner):
        decide(OP, f"{arguments.swa_full_tokens_ratio:g} kept: {reason}")
        return
    choice = choose(start_of(available_bytes, runner))
    arguments.swa_full_tokens_ratio = choice.ratio
    decide(OP, choice.why)


def start_of(available_bytes: int, runner: Any) -> Start:
    """Read what the arguments of this runner, a target's, say about the load."""
    arguments, config = runner.server_args, runner.model_config
    most = arguments.max_running_requests
    return Start(
        available_bytes=available_bytes,
        cell=_token_bytes(runner),
        serving=_serving(arguments, config),
        context=int(config.context_len),
        context_given=arguments.context_length is not None,
        requests=None if most is None else max(1, most // runner.dp_size),
        most_tokens=arguments.max_total_tokens,
        ratio=arguments.swa_full_tokens_ratio,
        ratio_given=getattr(arguments, GIVEN, None),
    )


def _token_bytes(runner: Any) -> TokenBytes:
    """Count bytes of a token as SGLang is about to, owners only where that is in force."""
    from gemma4_runtime.release import HybridSWAPoolConfigurator

    counted = HybridSWAPoolConfigurator(runner)
    return TokenBytes(
        full=counted._full_per_token * counted._full_layers_num, swa=counted._swa_per_token * counted._swa_layers_num
    )


def _serving(arguments: Any, config: Any) -> Serving:
    from gemma4_runtime.release import envs

    chunk = arguments.chunked_prefill_size
    return Serving(
        window=int(config.hf_text_config.sliding_window),
        page_size=int(arguments.page_size),
        # Unchunked, a prompt is prefilled whole, with as many others as the budget of a batch allows.
        chunk=chunk if chunk and chunk > 0 else max(int(config.context_len), int(arguments.max_prefill_tokens)),
        chunks_in_flight=1 if arguments.disable_overlap_schedule else 2,
        draft_tokens=int(arguments.speculative_num_draft_tokens or 0),
        evict_multiplier=float(envs.SGLANG_SWA_EVICTION_INTERVAL_MULTIPLIER.get()),
        prefix_cache=not arguments.disable_radix_cache,
        split_leaf=bool(envs.SGLANG_OPT_SWA_SPLIT_LEAF_ON_INSERT.get()),
        release_leaf_lock=bool(envs.SGLANG_OPT_SWA_RELEASE_LEAF_LOCK_AFTER_WINDOW.get()),
        drop_page_margin=bool(envs.SGLANG_OPT_SWA_EVICT_DROP_PAGE_MARGIN.get()),
    )


def _reason(runner: Any) -> str | None:
    """Say why this is no case for the policy; None if it is one."""
    arguments = runner.server_args
    if not runner.is_hybrid_swa:
        return "one pool for all layers (--disable-hybrid-swa-memory)"
    if not runner.model_config.full_attention_layer_ids or not runner.model_config.swa_attention_layer_ids:
        return "layers of one kind only"
    if runner.pp_size > 1:
        return "pipeline parallelism, whose ranks have different layers and must agree on the tokens"
    if arguments.enable_hierarchical_cache:
        return "hierarchical cache, whose host pool is sized after the ratio"
    if arguments.disaggregation_mode != "null":
        return "PD disaggregation, where prefill and decode keep different amounts"
    return draft_reason(runner)
