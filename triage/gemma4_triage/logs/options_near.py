"""Which options of a start concern what an exception and its innermost frames are about: those are changed first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gemma4_triage.finding import Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.known_arguments import known_arguments
from gemma4_triage.logs.late_pattern import pattern


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
        pattern(
            r"(?i)\b[nd]sa_backend|forward_(?:mha|mla|dsa|nsa)\b|\w*_k_cache\w*|dim_quant|trtllm_batch_\w*mla|"
            r"\btopk_(?:indices|length)\w*|\bindexer\b|"
            r"flash_?mla|page_table_1\b|_forward_(?:trtllm|fa3|tilelang|flashmla)\w*"
        ),
        "another pair that has this GPU and this type of KV (flashmla_sparse, flashmla_kv, tilelang, fa3), or none: "
        "the release then chooses",
    ),
    _Concern(
        ("moe_runner_backend", "speculative_moe_runner_backend"),
        pattern(r"(?i)moe|\bexperts?_|_experts?\b"),
        "triton or auto, which serve most kinds of experts, with adapters too",
    ),
    _Concern(
        ("fp8_gemm_runner_backend", "fp4_gemm_runner_backend", "bf16_gemm_backend"),
        pattern(r"(?i)gemm|scaled_mm|mm_fp[48]"),
        "another, or auto",
    ),
    _Concern(
        (
            *("linear_attn_decode_backend", "linear_attn_prefill_backend", "linear_attn_verify_backend"),
            *("linear_attn_backend", "mamba_backend", "mamba_scheduler_strategy", "mamba_radix_cache_strategy"),
        ),
        pattern(r"(?i)mamba|gdn|\bkda\b|linear_attn|delta_rule|conv_states?|ssm_states?"),
        "triton for the kernels, and another strategy for the states",
    ),
    _Concern(
        ("mm_attention_backend",),
        pattern(r"(?i)attention/vision|\bvision\.py|vision_attn|\bvit\b"),
        "triton_attn or sdpa",
    ),
    _Concern(
        ("speculative_draft_attention_backend",),
        pattern(r"(?i)draft|eagle|mtp|nextn"),
        "the target's own, or none",
    ),
    _Concern(("sampling_backend",), pattern(r"(?i)\bsampler|top_[kp]_\w*(?:renorm|sampl)|min_p"), "pytorch"),
    _Concern(("grammar_backend",), pattern(r"(?i)grammar|xgrammar|llguidance|outlines"), "another"),
    _Concern(("lora_backend",), pattern(r"(?i)lora|sgmv|\bbgmv"), "triton"),
    _Concern(
        ("disaggregation_transfer_backend",),
        pattern(r"(?i)mooncake|nixl|\bkv_?(?:sender|receiver|manager)"),
        "another",
    ),
    _Concern(
        ("hicache_io_backend", "hicache_mem_layout"),
        pattern(r"(?i)hicache|_host\b|host_pool|kvcacheio|(?:write|load)_back|cudaMemcpyBatch"),
        "another (direct, layer_first)",
    ),
    _Concern(
        ("hybrid_kvcache_ratio", "swa_full_tokens_ratio"),
        pattern(
            r"(?i)\bswa_kv_pool\b|swa_memory_pool|full_to_swa|\bswa_\w*alloc|\bhybrid_\w*pool|"
            r"\bmemory_pool\.py:\d+ _?create_buffers$"
        ),
        "the release then sizes both pools itself, or has one pool for all layers (--disable-hybrid-swa-memory)",
    ),
)
# Of these what the release takes by itself is no choice, and a start that prints all of its arguments shows both.
_CHOSEN = (
    _Concern(
        ("cuda_graph_bs", "cuda_graph_backend_decode", "cuda_graph_backend_prefill", "enable_profile_cuda_graph"),
        pattern(r"(?i)cuda_?graph|\bcapture\w*|\breplay\w*"),
        "the release then chooses sizes and kind of the graphs",
    ),
    _Concern(
        ("kv_cache_dtype",),
        pattern(r"(?i)\w*attn_backend\.py|\bforward_paged_attention|_forward_paged_attention|descale|float8|\bfp8_"),
        "auto, which every backend takes",
    ),
    _Concern(
        ("page_size",),
        pattern(r"(?i)\bpage_?size|page_table|block_tables?|alloc_(?:extend|decode)|\bpages?\b|paged_(?!attention)"),
        "1, or what the backend takes by itself",
    ),
    _Concern(
        ("hicache_write_policy", "hicache_storage_prefetch_policy"),
        pattern(r"(?i)(?:write|load)_back|write_through|\bprefetch\w*|hicache|hiradix|_host\b|backup"),
        "write_through, best_effort",
    ),
    _Concern(
        ("quantization_param_path",),
        pattern(r"(?i)\b[kv]_scale\w*|kv_cache_scales?|quantization_param|kv_scal"),
        "scales of 1 then, or --kv-cache-dtype auto",
    ),
    _Concern(("schedule_policy",), pattern(r"(?i)schedule_policy|calc_priority|\b_sort_by\w*"), "fcfs"),
    _Concern(("load_format",), pattern(r"(?i)model_loader|weight_iterator|\bload_model\b|load_weights"), "auto"),
    _Concern(
        ("speculative_attention_mode", "speculative_token_map", "speculative_draft_window_size"),
        pattern(r"(?i)draft|eagle|verify|speculat|hot_token"),
        "the release's own",
    ),
    _Concern(
        ("tokenizer_mode", "tokenizer_backend", "skip_tokenizer_init"),
        pattern(r"(?i)(?<!de)tokenizer(?!_manager|_communicator)|\bencode\b|apply_chat_template"),
        "auto",
    ),
    _Concern(("disable_radix_cache",), pattern(r"chunk_cache|ChunkCache"), "the tree is what most servers run with"),
    _Concern(
        ("disaggregation_decode_enable_radix_cache", "disaggregation_decode_enable_offload_kvcache"),
        pattern(r"(?i)radix|match_prefix|prealloc|offload|lock_ref|cache_(?:un)?finished_req|disaggregation/decode"),
        "a decode server without it keeps no prefixes",
    ),
    _Concern(
        ("mm_process_config", "mm_enable_dp_encoder", "keep_mm_feature_on_device"),
        pattern(r"(?i)multimodal|\bmm_|\bvit\b|vision|image"),
        "the model's own processing then",
    ),
)
_NAMES_ATTENTION = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
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
    found += [(True, text) for text in _chosen(facts, near)]
    return tuple(text for _, text in sorted(found, key=lambda one: one[0]))


def beside(facts: LogFacts, finding: Finding) -> Finding:
    """Return a finding with what the start chose for the part that failed behind its own first step."""
    death = next((one for one in facts.failures if finding.evidence and _of_line(finding, one)), None)
    if death is None:
        return finding
    first, own = finding.advice[:1], " ".join(finding.advice)
    attention = () if "--attention-backend" in own else by_file(facts, death)
    found = [one for one in (*named_by(facts, death), *attention) if _flags(one) not in own]
    return finding.model_copy(update={"advice": (*first, *found, *finding.advice[1:])}) if found else finding


def _flags(advice: str) -> str:
    return advice.removeprefix("once without ").partition(",")[0]


def _of_line(finding: Finding, death: Death) -> bool:
    return any(one.field == f"line {death.place.line}" for one in finding.evidence)


def _chosen(facts: LogFacts, near: str) -> Iterator[str]:
    """Yield which choices of the start to undo that no release makes by itself."""
    for concern in _CHOSEN:
        asked = {name: facts.arguments[name] for name in concern.options if _is_chosen(facts, name)}
        if (
            "disaggregation_decode_enable_radix_cache" in asked
            and facts.settings.get("enable_hierarchical_cache") == "True"
        ):
            # Pages of the host are more often what a prefix of such a server is lost in.
            continue
        if asked and concern.words.search(near) and not concern.instead.startswith(tuple(asked.values())):
            flags = ", ".join(_typed(name, value) for name, value in asked.items())
            yield f"once without {flags}, which the start has chosen for this part: {concern.instead}"


def _is_chosen(facts: LogFacts, name: str) -> bool:
    """Say whether an argument has a value that no release that is known takes by itself."""
    value = facts.arguments.get(name, "")
    defaults = {str(one) for known in known_arguments().values() for one in known.get(name, ("", ()))[1]}
    # A list of sizes is made by every release; a command has what was asked for alone.
    computed = facts.starts > 0 and name in ("cuda_graph_bs", "page_size")
    return value not in LEFT_TO_THE_RELEASE and value not in {"False", *defaults} and not computed


def _typed(name: str, value: str) -> str:
    return f"--{name.replace('_', '-')}{'' if value == 'True' else f' {value}'}"


def by_file(facts: LogFacts, death: Death) -> Iterator[str]:
    """Yield which attention backend of a command to change, where its very file is among the innermost frames."""
    if facts.starts:
        return
    files = " ".join((death.path, *death.frames[-_INNER:]))
    for name in _NAMES_ATTENTION:
        value = facts.arguments.get(name, "")
        if value not in LEFT_TO_THE_RELEASE and re.search(rf"\b{re.escape(value)}(?:_mla)?_backend\.py", files):
            other = "flashinfer, fa3" if value == "triton" else "triton serves most"
            yield f"once without {_typed(name, value)}, in whose own file it was raised: another ({other}), or none"


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
