"""Which options of a start concern what an exception and its innermost frames are about: those are changed first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from gemma4_triage.logs.facts import Death, LogFacts


class _Concern(NamedTuple):
    """Options that choose one part of the server.

    Attributes:
        options: as ServerArgs names them.
        words: stand in an exception, in its line or in its innermost frames where that part failed.
        instead: what to choose.
    """

    options: tuple[str, ...]
    words: re.Pattern[str]
    instead: str


_SPARSE = ("nsa_prefill_backend", "nsa_decode_backend", "dsa_prefill_backend", "dsa_decode_backend")
# The first that fit come first.
_CONCERNS = (
    _Concern(
        _SPARSE,
        re.compile(
            r"(?i)\b[nd]sa_backend|forward_(?:mha|mla|dsa|nsa)\b|\w*_k_cache\w*|dim_quant|trtllm_batch_\w*mla|"
            r"\btopk_(?:indices|length)\w*|\bindexer\b|"
            r"flash_?mla|page_table_1\b|_forward_(?:trtllm|fa3|tilelang|flashmla)\w*"
        ),
        "another pair that has this GPU and this type of KV (flashmla_sparse, flashmla_kv, tilelang, fa3), or none: "
        "the release then chooses",
    ),
    _Concern(
        ("moe_runner_backend", "speculative_moe_runner_backend"),
        re.compile(r"(?i)moe|\bexperts?_|_experts?\b"),
        "triton or auto, which serve most kinds of experts, with adapters too",
    ),
    _Concern(
        ("fp8_gemm_runner_backend", "fp4_gemm_runner_backend", "bf16_gemm_backend"),
        re.compile(r"(?i)gemm|scaled_mm|mm_fp[48]"),
        "another, or auto",
    ),
    _Concern(
        (
            *("linear_attn_decode_backend", "linear_attn_prefill_backend", "linear_attn_verify_backend"),
            *("linear_attn_backend", "mamba_backend", "mamba_scheduler_strategy", "mamba_radix_cache_strategy"),
        ),
        re.compile(r"(?i)mamba|gdn|\bkda\b|linear_attn|delta_rule|conv_states?|ssm_states?"),
        "triton for the kernels, and another strategy for the states",
    ),
    _Concern(
        ("mm_attention_backend",),
        re.compile(r"(?i)attention/vision|\bvision\.py|vision_attn|\bvit\b"),
        "triton_attn or sdpa",
    ),
    _Concern(
        ("speculative_draft_attention_backend",),
        re.compile(r"(?i)draft|eagle|mtp|nextn"),
        "the target's own, or none",
    ),
    _Concern(("sampling_backend",), re.compile(r"(?i)\bsampler|top_[kp]_\w*(?:renorm|sampl)|min_p"), "pytorch"),
    _Concern(("grammar_backend",), re.compile(r"(?i)grammar|xgrammar|llguidance|outlines"), "another"),
    _Concern(("lora_backend",), re.compile(r"(?i)lora|sgmv|\bbgmv"), "triton"),
    _Concern(
        ("disaggregation_transfer_backend",),
        re.compile(r"(?i)mooncake|nixl|\bkv_?(?:sender|receiver|manager)"),
        "another",
    ),
    _Concern(
        ("hicache_io_backend", "hicache_mem_layout"),
        re.compile(r"(?i)hicache|_host\b|host_pool|kvcacheio|(?:write|load)_back|cudaMemcpyBatch"),
        "another (direct, layer_first)",
    ),
    _Concern(
        ("hybrid_kvcache_ratio", "swa_full_tokens_ratio"),
        re.compile(r"(?i)\bswa_kv_pool\b|swa_memory_pool|\bhybrid_\w*pool|\bmemory_pool\.py:\d+ _?create_buffers$"),
        "the release then sizes both pools itself, or has one pool for all layers (--disable-hybrid-swa-memory)",
    ),
)
LEFT_TO_THE_RELEASE = frozenset({"None", "auto", "default", ""})
_INNER = 3  # frames
_QUOTED = 6  # characters of a value that no other word has by chance


def named_by(facts: LogFacts, death: Death) -> tuple[str, ...]:
    """Return what to choose in place of what the start has, as "once with another … than …"; what is quoted first."""
    near = " ".join((death.message[:300], death.statement[:300], death.path, *death.frames[-_INNER:]))
    given = facts.arguments
    found: list[tuple[bool, str]] = []
    for concern in _CONCERNS:
        asked = {
            name: given[name]
            for name in concern.options
            if given.get(name, "") not in LEFT_TO_THE_RELEASE and not concern.instead.startswith(given[name])
        }
        if not asked:
            continue
        quoted = any(len(value) >= _QUOTED and value in death.message for value in asked.values())
        if not quoted and not concern.words.search(near):
            continue
        flags = ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in asked.items())
        instead = _without(concern.instead, asked.values())
        if concern.options is _SPARSE and given.get("kv_cache_dtype", "") not in LEFT_TO_THE_RELEASE:
            instead += f"; once with --kv-cache-dtype auto in place of {given['kv_cache_dtype']}"
        found.append((not quoted, f"once without {flags}, which the start has chosen for this part: {instead}"))
    return tuple(text for _, text in sorted(found, key=lambda one: one[0]))


def _without(instead: str, values: Iterable[str]) -> str:
    """Return what to choose without what the start has chosen."""
    for value in values:
        instead = re.sub(rf"(?<=[( ]){re.escape(value)}, |, {re.escape(value)}(?=\))", "", instead)
    return instead


_SHOWN = 220  # characters


def overridden(facts: LogFacts, death: Death) -> tuple[str, ...]:
    """Return what to leave out where a check of the configuration met what the start has put over config.json."""
    given = facts.arguments.get("json_model_override_args", "{}")
    if not death.path.startswith("configs/") or given in ("{}", "None", ""):
        return ()
    return (f"once without --json-model-override-args {given[:_SHOWN]}, by which config.json is not the model's own",)
