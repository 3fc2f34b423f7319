"""The attention backend has no kernel for this model on this GPU: head dimension, dtype or architecture.

Gemma-4's full layers have a head dimension of 512, its sliding ones of 256. Which backends SGLang takes for it
stands in its server_args.py: triton anywhere, trtllm_mha on SM100, intel_xpu on Intel's GPUs.
"""

from __future__ import annotations

import re

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.options_near import named_by
from gemma4_triage.logs.rule import of_death, of_failure, of_settings, pattern, says

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
    r"(?:fmha|trtllm\w*attention|mla)\w*.{0,200}unsupported architecture|missing trtllm-gen kernel"
)
_DTYPE = pattern(
    r"(?i)(?:only supports? .{0,20}(?:fp16|bf16|fp8)|data type).{0,60}(?:kv|query|attention)|"
    r"kv.{0,30}dtype.{0,40}not support"
)
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
    return any(says(words)(death) for words in (_REFUSED, _HEADS, _GPU)) or (
        says(_DTYPE)(death) and any("attention" in frame or "backend" in frame for frame in death.frames)
    )


_MIXED = (
    "--kv-cache-dtype auto with this backend, or this type of KV with another --attention-backend (flashinfer, "
    "triton); a later release gives the queries the type of the KV",
)


def _tell(facts: LogFacts, death: Death) -> Finding:
    quantised = facts.settings.get("kv_cache_dtype", "auto") not in ("auto", "None", "bfloat16", "bf16", "float16")
    mixed = quantised and "Missing TRTLLM-GEN kernel" in death.message
    if says(_REFUSED)(death):
        what = "The attention backend that was asked for is none that SGLang serves this model with"
        confidence = Confidence.CERTAIN
    else:
        what = "The attention backend has no kernel for this "
        what += (
            "type of KV beside queries of another"
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
    names = ("attention_backend", "prefill_attention_backend", "decode_attention_backend", "kv_cache_dtype")
    return Finding(
        rule=RULE.id,
        cause=f"{what}.",
        confidence=confidence,
        evidence=(*of_failure(facts, death), *of_settings(facts, *names)),
        ruled_out_if=("the same server dies alike with --attention-backend triton",),
        advice=(*named_by(facts, death), *of_part, *(_MIXED if mixed else ()), *_SERVED),
        next_commands=("gemma4-triage doctor",),
    )


RULE = of_death("attention-kernel", "the attention backend has no kernel for this model or GPU", _explains, _tell)
