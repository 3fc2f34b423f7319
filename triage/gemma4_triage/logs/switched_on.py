"""What a server has switched on beyond plain serving: what to leave out, one at a time, behind an exception."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.options_near import by_file, named_by


@dataclass(frozen=True, slots=True)
class Feature:
    """An argument that asks for more than plain serving.

    Attributes:
        setting: its name in ServerArgs.
        words: what names it in an exception or in a traceback's frames; None if nothing does.
        without: how to do without it, as "without --enable-lora".
    """

    setting: str
    words: re.Pattern[str] | None
    without: str

    @property
    def flag(self) -> str:
        """Return the argument as it is typed."""
        return f"--{self.setting.replace('_', '-')}"

    def is_named(self, death: Death) -> bool:
        """Say whether an exception or its frames name what it is about."""
        near = len(death.frames) if self.setting in _FAR else _NEAR
        said = " ".join((death.message[:_LOOKED_AT], death.statement[:_LOOKED_AT], death.caller, *death.frames[-near:]))
        return self.words is not None and self.words.search(said) is not None


_LOOKED_AT, _NEAR = 300, 6  # characters, frames
_FAR = frozenset({"speculative_adaptive"})
"""Of these the words are rare enough to count wherever they stand in a traceback."""
# What each is called in SGLang's code, where that is not a word of its name; and how to do without it.
_FEATURES = {
    # It alone captures the target's graphs anew from the draft's worker.
    "speculative_adaptive": (r"adaptive|eagle_worker\w*\.py:\d+ __init__ cuda_graph_runner\.py:\d+ capture", ""),
    "speculative_algorithm": (
        r"eagle|mtp|spec_|speculat|draft|verify|ngram|aux_hidden|extend_\w*lens|seq_lens_cpu",
        "",
    ),
    "enable_hierarchical_cache": (r"hicache|hiradix|load_back|write_back|_host\b", ""),
    "enable_lora": (r"lora", ""),
    "enable_lmcache": (r"lmc_|lmcache|committed kv|kv_committed", ""),
    "enable_mixed_chunk": (r"mixed|mix_with_running|prefix_lens", ""),
    "enable_dp_attention": (r"dp_|data_parallel", ""),
    "attn_cp_size": (r"context_parallel|_cp\b|\bcp_", "with --attn-cp-size 1"),
    "dcp_size": (
        r"\bdcp\b|dcp_|_dcp|/dcp/|forward_mla\w*\.py|\b[dn]sa_backend\.py|\bmla_backend\.py",
        "with --dcp-size 1",
    ),
    "kv_cache_dtype": (
        r"store_dtype|kv_cache_dtype|fp8_kv|kv_\w*fp[48]|fp[48]\w*_kv|dequant_\w*(?:extend|kv)|k_scale|"
        r"quantize_k_cache|dim_quant|k_cache_paged",
        "with --kv-cache-dtype auto",
    ),
    "pp_size": (r"_pp\b|\bpp_|pipeline", "with --pp-size 1 (--tp for the other GPUs)"),
    "disaggregation_mode": (
        r"disagg|prealloc|bootstrap|transfer|DecodeRequest",
        "on one server in place of a prefill and a decode server",
    ),
    "enable_two_batch_overlap": (r"two_batch|tbo", ""),
    "enable_eplb": (r"eplb|expert_location", ""),
    "ep_size": (r"ep_moe|expert_parallel|\bep_|moe_ep", "with --ep-size 1 (--tp alone)"),
    "cpu_offload_gb": (r"offload", ""),
    "moe_dense_tp_size": (r"gate_up|dense|moe_dense|base partition", ""),
    "moe_a2a_backend": (
        r"deep_?ep|fused_?deep_?moe|a2a|token_dispatcher|mooncake_ep|\bmori",
        "with --moe-a2a-backend none",
    ),
    "hicache_storage_backend": (r"storage|mooncake|hf3fs|prefetch|nixl|batch_get|hicache(?:file|eic|aibrix|simm)", ""),
    "enable_return_routed_experts": (r"experts_capturer|routed_expert", ""),
    "enable_forward_pass_metrics": (r"metrics_reporter|forward_pass_metrics", ""),
    "tokenizer_worker_num": (r"multi_?tokenizer|http_worker|ipc_name", "with --tokenizer-worker-num 1"),
}
# Of no use as a hint: they stand in half of all frames.
_COMMON = frozenset(
    {"enable", "attention", "cache", "cuda", "graph", "mode", "scheduling", "kernel", "prefill", "decode", "model"}
    | {"batch", "memory", "token", "weights", "cpu", "gpu", "for", "multi", "layer", "fused", "all", "by", "torch"}
    | {"metrics", "trace", "custom", "mixed", "request", "time", "stats", "logging", "report", "p2p", "check"}
)
# These change nothing that a step computes.
_HARMLESS = pattern(
    r"enable_(?:multimodal|metrics\w*|cache_report|request_time_stats\w*|trace|log\w*|mfu_metrics|http2)"
)
_ON = frozenset({("moe_dense_tp_size", "1")})
_OFF = frozenset({"None", "False", "0", "1", "null", "none", "auto", ""})


def features(facts: LogFacts) -> tuple[Feature, ...]:
    """Return what this server has switched on beyond plain serving, as far as its start line shows it."""
    found = []
    for setting, value in facts.settings.items():
        known = setting in _FEATURES
        if (
            (value in _OFF and (setting, value) not in _ON)
            or _HARMLESS.fullmatch(setting)
            or not (known or setting.startswith("enable_"))
        ):
            continue
        words, without = _FEATURES.get(setting, ("|".join(_telling(setting)), ""))
        flag = f"--{setting.replace('_', '-')}"
        found.append(
            Feature(setting, pattern(f"(?i){words}") if words else None, without or f"without {flag}"),
        )
    return tuple(found)


def _telling(setting: str) -> list[str]:
    return [word for word in setting.split("_") if word not in _COMMON and len(word) > 2]


MEET = frozenset({"enable_symm_mem", "enable_torch_symm_mem", "enable_eplb", "enable_two_batch_overlap", "dcp_size"})
"""What ranks meet in, so that one which does not come holds up all."""
_NO_CUDA = (
    "this server runs on {0}, for which some code is lacking: a later release; until then requests without log "
    "probabilities, forms of answers, adapters and images, or a GPU of NVIDIA"
)
_BEYOND_CUDA = "without {0}, one at a time: on {1} code of what goes beyond plain serving is seldom there, or untried"
_NO_GRAMMARS = (
    "this server has no --grammar-backend: name one (xgrammar), or refuse response_format, regex and tools of a fixed "
    "form before they reach it"
)


NAMED = "the exception names what it is about"
CHOSEN = "Its words or innermost frames are of what that option chooses"
NO_OVERLAP = (
    "once with --disable-overlap-schedule: a step then begins when the one before it has ended, and nothing is freed "
    "or read too early"
)


_OF_A_DRAFT = pattern(
    r".* (?:maybe_init_)?\w*draft_worker\w*$|"
    r"(?!\w*target)\w*(?:eagle|draft|mtp|nextn|dflash|dspark|standalone)\w*\.py:"
)


def as_the_draft_was_loaded(facts: LogFacts, death: Death) -> tuple[str, ...]:
    """Return what to do where a start failed while it loaded the draft and no more the target; empty if it did not."""
    chain = death.chain or death.place.line
    raised = [frame for one in facts.deaths if (one.chain or one.place.line) == chain for frame in one.frames]
    if facts.served or death.usage is not None or not any(map(_OF_A_DRAFT.match, (*raised, *death.frames))):
        return ()
    # Graphs are captured of a model that is loaded.
    if any(map(_RUNS.match, (*raised, *death.frames[-3:]))):
        return ()
    return (
        "the target was loaded, it is the draft (--speculative-draft-model-path): its own --speculative-draft-"
        "attention-backend (flashinfer, triton, trtllm_mha) and --speculative-draft-model-quantization, where it is of "
        "another kind than the target; a draft that this release serves; once without --speculative-algorithm",
    )


def as_the_draft_was_captured(facts: LogFacts, death: Death) -> tuple[str, ...]:
    """Return what to do where a start failed as it captured the draft's graphs, behind those of the target."""
    begun = facts.remarks.get("draft_graphs")
    if begun is None or facts.served or "ready" in facts.remarks or death.usage is not None:
        return ()
    target = facts.remarks.get("before_graphs")
    line = (death.chain or death.place.line) - begun.place.line
    if not 0 < line <= _SOON or (target is not None and target.place.line > begun.place.line):
        return ()
    return (
        f"once without --speculative-algorithm: the draft's graphs were being captured (line {begun.place.line}), and "
        "what is set up for the target's layers (buffers, attributes) may lack for the draft's. If it then serves, a "
        "later release, or drafts with --disable-cuda-graph until then",
    )


_RUNS = pattern(r"\S+\.py:\S* (?:forward|replay|\w*capture\w*)$")
_SOON = 40  # lines


def aborted_before(facts: LogFacts, death: Death) -> str:
    """Return what to do about a request that was aborted just before something died; "" if none was."""
    aborted = facts.remarks.get("abort")
    if aborted is None or not 0 < death.place.line - aborted.place.line <= _SOON:
        return ""
    return (
        f"line {aborted.place.line} tells of a request that was aborted just before: one that ends in the middle of a "
        "step is a frequent defect. Clients and routers that wait longer and give up fewer; then a later release"
    )


_IN_WARMUP = pattern(
    r"(?i)\b(?:dies|died|ends|ended|crash\w*|fail\w*|exits?|killed)\b.{0,30}?\b(?:in|during|at|by|of) (?:\w+ ){0,2}"
    r"warm-?up"
)


def in_its_warmup(facts: LogFacts, death: Death) -> tuple[str, ...]:
    """Return what to do where a server died of its own first requests, before any client's; empty if not so."""
    if facts.served or "ready" in facts.remarks:
        return ()
    begun, notes = facts.remarks.get("pd_warmup"), facts.remarks.get("notes")
    if begun is not None and begun.place.line <= death.place.line:
        where = f"line {begun.place.line}"
    elif notes is not None and _IN_WARMUP.search(notes.text):
        where = "by a note"
    else:
        return ()
    split = begun is not None or facts.settings.get("disaggregation_mode", "null") not in ("null", "None")
    each = ", which with --enable-dp-attention are one for each rank" * (
        split and facts.settings.get("enable_dp_attention") == "True"
    )
    return (
        f"once with --skip-server-warmup: it died of the server's own first requests ({where}){each}. "
        "If it then serves, the warm-up of this release is at fault: the release before, or a later one",
    )


_OF_A_PATH = pattern(
    r"(?:VLLM|SGLANG|SGL)_(?!\w*(?:LOG|DEBUG|TRACE|METRIC|TIMEOUT|USAGE|CACHE|PORT|HOST|DIR|PATH|DOWNLOAD|MODELSCOPE|"
    r"ALLOW|USE_V1|CHECK|TEST|IS_|SPEC_V2|DEEPGEMM))\w+"
)


def variables(facts: LogFacts) -> tuple[str, ...]:
    """Return which variables of the environment put this server on a path of code that it does not take by itself."""
    given = facts.arguments.items()
    return tuple(f"{name}={value}" for name, value in given if _OF_A_PATH.fullmatch(name) and value in ("1", "true"))


_OF_A_TRIAL = pattern(r"(?:SGLANG|SGL|VLLM)_(?:\w*_)?(?:HACK|EXPERIMENTAL)_\w+")


def on_trial(facts: LogFacts) -> tuple[str, ...]:
    """Return which variables to unset that by their name put a part of the server on a path that is on trial."""
    given = (f"{name}={value}" for name, value in facts.arguments.items() if _OF_A_TRIAL.fullmatch(name))
    return tuple(
        f"once without {one} in its environment, or with another value: by its name it is a path on trial, which what "
        "else is switched on (a hierarchical cache, drafts, graphs) may not know"
        for one in given
    )


def switched_on(facts: LogFacts, death: Death | None = None) -> tuple[str, ...]:
    """Return what to leave out of this server's start, one at a time; empty if its start shows nothing.

    Args:
        facts: the log.
        death: what a process died of; what that names comes first.
    """
    on = features(facts)
    device = facts.settings.get("device", "None")
    elsewhere = device not in (*_OFF, "cuda")
    named = [one for one in on if death is not None and one.is_named(death)]
    given_up = aborted_before(facts, death) if death is not None else ""
    overlaps = facts.served and facts.settings.get("disable_overlap_schedule", "None") != "True"
    rest = [one.flag for one in on if one not in named] + list(variables(facts))
    return (
        *((_BEYOND_CUDA.format(", ".join(one.flag for one in on), device),) * (elsewhere and bool(on))),
        *((_NO_CUDA.format(device),) * elsewhere),
        *((_NO_GRAMMARS,) * (facts.settings.get("grammar_backend") == "none")),
        *(f"{one}. {CHOSEN}" for one in (named_by(facts, death) if death is not None else ())),
        *(f"once {one.without}: {NAMED}" for one in named),
        *(f"{one}. {CHOSEN}" for one in (by_file(facts, death) if death is not None else ())),
        *((given_up,) * bool(given_up)),
        *(
            (f"this server has {', '.join(rest)}: leave out one at a time, with the same load, until it holds",)
            * (bool(rest) and not elsewhere)
        ),
        *((NO_OVERLAP,) * overlaps),
    )
