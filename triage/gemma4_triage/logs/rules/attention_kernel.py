"""The attention backend has no kernel for this model on this GPU: head dimension, dtype or architecture.

Gemma-4's full layers have a head dimension of 512, its sliding ones of 256. Which backends SGLang takes for it
stands in its server_args.py: triton anywhere, trtllm_mha on SM100, intel_xpu on Intel's GPUs.
"""

from __future__ import annotations

import re

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.options_near import named_by
from gemma4_triage.logs.rule import of_death, of_failure, of_settings, says

_REFUSED = pattern(r"Gemma4 only supports trtllm_mha, triton|Bidirectional attention for image tokens requires")
_HEADS = pattern(
    r"(?i)head[ _]?(?:dim(?:ension)?s?|size)\W.{0,80}?(?:not supported|unsupported|only support|at most|must be|"
    r"<=|divis)|"
    r"(?:unsupported|not supported|only supports?|invalid|no kernel).{0,60}head[ _]?(?:dim|size)|"
    r"failed to dispatch head_dim|"
    r"This flash attention build does not support|Unsupported max_mma_kv|Invalid configuration\s*:\s*NUM_MMA"
)
_GPU = pattern(
    r"(?i)(?:FlashAttention|FA3|fa4|flash_attn|trtllm[_ -]?(?:mha|gen)|flashinfer|cutlass_mla|flashmla).{0,120}"
    r"(?:only support|requires?|not supported|unsupported|missing).{0,80}(?:SM ?\d|sm_?\d|Ampere|Hopper|"
    r"Blackwell|GPUs?|kernel)|"
    r"(?:fmha|trtllm\w*attention|mla)\w*.{0,200}unsupported architecture|missing trtllm-gen kernel|"
    r"trtllm-gen kernels? not found:?\s*$"
)
_DTYPE = pattern(
    r"(?i)(?:only supports? .{0,20}(?:fp16|bf16|fp8)|data type).{0,60}(?:kv|query|attention)|"
    r"kv.{0,30}d(?:ata_)?type.{0,40}not support"
)
_OF_STORED_KV = pattern(r"(?i)kv_?(?:cache_)?d(?:ata_)?type\W{0,3}(?:torch\.)?(?:uint8|float8\w*) .{0,20}not support")
_FEATURE = pattern(
    r"(?i)([\w -]{3,40}?)\b(?: (?:is|are))? only (?:supported|available) (?:in|by|with|on) "
    r"(Flash ?Attention[ -]?\d|FA[ -]?\d\b|flash_attn[ -]?\d)"
)
_DISPATCHED = pattern(r"failed to dispatch with dtype (\w+)")
_PAGES = pattern(r"numTokensPerPage <= (\d+)")
_BLOCK = pattern(r"attention block size to (\d+) tokens")
_TOWER = pattern(r"(?:\w*_)?(?:vision|vit|siglip|clip|audio|mm)\w*\.py:")
_SERVED = (
    "Gemma-4: --attention-backend triton serves head dimensions 512 and 256 on every CUDA GPU; trtllm_mha needs SM100",
    "other models: --attention-backend triton has no fixed list of head dimensions",
)


_ENCODER = (
    "of the image or audio encoder: --mm-attention-backend triton_attn or sdpa (fa3 up to Hopper, fa4 on B200, B300)",
)
_FA3 = (
    "fa3 has kernels for 8.0 to 9.0 (Ampere to Hopper; of MLA models 9.0) alone: on Blackwell leave "
    "--attention-backend out, or flashinfer, triton; trtllm_mha on B200 and B300",
)


_COMPILES = pattern(r"FlashInfer requires GPUs with sm75")


def _explains(death: Death) -> bool:
    # That tells of the compiler as often as of the GPU, of kernels of any kind.
    if says(_COMPILES)(death):
        return False
    return any(says(words)(death) for words in (_REFUSED, _HEADS, _GPU, _FEATURE, _DISPATCHED, _OF_STORED_KV)) or (
        says(_DTYPE)(death) and any("attention" in frame or "backend" in frame for frame in death.frames)
    )


_MIXED = (
    "--kv-cache-dtype auto with this backend, or this type of KV with another --attention-backend (flashinfer, "
    "triton); a later release gives the queries the type of the KV",
)


def _in_words(facts: LogFacts, death: Death) -> tuple[str, tuple[str, ...]] | None:
    """Return cause and advice where the words name something else than a head dimension, a GPU or a type alone."""
    if found := _FEATURE.search(death.message):
        return (
            f"The attention backend that was chosen has no {found[1].strip().lower()} here: {found[2]} alone has, "
            "which is for Hopper (9.0), and on other GPUs an earlier one stands in for it",
            (f"--attention-backend triton, or another one that has {found[1].strip().lower()} on this GPU; {_VLLM}",),
        )
    if found := _DISPATCHED.search(death.message):
        return (
            f"The attention library was not built for this call. It names the type, {found[1]}, and as well may mean "
            "the head dimension, the queries for each KV head or the mask, which it chooses its kernels by too",
            ("a later release of that library (pip show flashinfer-python), which is built for more of them",),
        )
    if found := _PAGES.search(death.message):
        block = facts.remarks.get("vllm_block")
        size = _BLOCK.search(block.text) if block is not None else None
        large = size is not None and int(size[1]) > int(found[1])
        what = f"pages of {size[1]} tokens: it takes {found[1]} at most" if large and size else _PAGES_OR_HEADS
        of_states = " They are as large as the states of the model's other layers ask for." * large
        return (
            f"The attention kernel has none for {what}.{of_states}".rstrip("."),
            (
                "another --attention-backend, whose pages may be of any size (triton; FLASH_ATTN of vLLM); a later "
                "release, which cuts such pages into smaller ones for the kernel",
            ),
        )
    return None


_PAGES_OR_HEADS = "this head dimension or this size of pages (--page-size, --block-size)"
_VLLM = "of vLLM TRITON_ATTN (earlier VLLM_ATTENTION_BACKEND=TRITON_ATTN_VLLM_V1)"
_BESIDE_TRITON = (
    "This head dimension has no kernel, and it is not the attention backend's: that is triton, which has no fixed list "
    "of them. Another part of the model calls a compiled kernel for it, such as the rotary embedding, a norm or an "
    "image's encoder"
)
_NATIVE_PATH = (
    "a later release, whose rotary embedding and norms take PyTorch's own path for such a head dimension; the frames "
    "of a start with --disable-cuda-graph name the layer, in whose forward_cuda forward_native may stand",
    "--mm-attention-backend sdpa, if that layer is of the image's or the sound's encoder",
)


def _tell(facts: LogFacts, death: Death) -> Finding:
    quantised = facts.settings.get("kv_cache_dtype", "auto") not in ("auto", "None", "bfloat16", "bf16", "float16")
    stored = quantised and says(_OF_STORED_KV)(death)
    mixed = stored or (quantised and "Missing TRTLLM-GEN kernel" in death.message)
    in_words = _in_words(facts, death)
    beside = says(_HEADS)(death) and _is_triton(facts) and not any(map(_BACKENDS.match, death.frames))
    if says(_REFUSED)(death):
        what = "The attention backend that was asked for is none that SGLang serves this model with"
        confidence = Confidence.CERTAIN
    elif beside and in_words is None:
        what, confidence = _BESIDE_TRITON, Confidence.POSSIBLE
    elif in_words is not None:
        what, confidence = in_words[0], Confidence.LIKELY
    else:
        what = "The attention backend has no kernel for this "
        what += (
            "type of KV"
            if stored
            else "type of KV beside queries of another"
            if mixed
            else "head dimension"
            if says(_HEADS)(death)
            else "GPU"
            if says(_GPU)(death)
            else "dtype"
        )
        confidence = Confidence.LIKELY
    encoder = any(_TOWER.match(frame) for frame in death.frames)
    of_part = (_ENCODER if encoder else ()) + (_FA3 if re.search(r"(?i)fa3.*blackwell", death.message) else ())
    what += " in the model's image or sound encoder" * encoder
    advice = _NATIVE_PATH if beside and in_words is None else ((*in_words[1], _SERVED[1]) if in_words else _SERVED)
    names = ("attention_backend", "prefill_attention_backend", "decode_attention_backend", "kv_cache_dtype")
    return Finding(
        rule=RULE.id,
        cause=f"{what}.",
        confidence=confidence,
        evidence=(*of_failure(facts, death), *of_settings(facts, *names)),
        ruled_out_if=() if beside else ("the same server dies alike with --attention-backend triton",),
        advice=(*named_by(facts, death), *of_part, *(_MIXED if mixed else ()), *advice),
        next_commands=("gemma4-triage doctor",),
    )


_BACKENDS = pattern(r"(?!vision)\w*(?:attention|attn|flash\w*|_backend)\w*\.py:")


def _is_triton(facts: LogFacts) -> bool:
    """Say whether every phase of this server has the backend whose kernels serve any head dimension."""
    names = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")
    given = {facts.settings.get(name, "None") for name in names} - {"None"}
    return given == {"triton"}


RULE = of_death("attention-kernel", "the attention backend has no kernel for this model or GPU", _explains, _tell)
