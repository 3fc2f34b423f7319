"""A library of kernels refused a call that SGLang made: which part of the model it computes says what to choose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import is_of_a_kind_first, of_death, of_failure, of_settings

_PACKAGES = frozenset(
    {
        "flashinfer",
        "sgl_kernel",
        "sglang_kernel",
        "flash_attn",
        "flash_attn_interface",
        "deep_gemm",
        "tilelang",
        "aiter",
    }
    | {"flash_mla", "fla", "causal_conv1d", "mamba_ssm", "tvm_ffi", "cutlass", "cuda", "humming", "vllm"}
)
_SERVERS = frozenset({"vllm"})
_PINNED = "the releases of sglang-kernel and flashinfer that SGLang pins (pip list), for the CUDA that is installed"
_OF_ITS_IMAGE = "the {0} of SGLang's image for this GPU: its kernels and its tuned tables have to be of one release"
_OF_IMAGES = frozenset({"aiter", "vllm", "tilelang", "humming"})
_OF_RELEASES = frozenset({"AttributeError", "KeyError", "TypeError", "NameError"})
_MISFIT = (
    "what it met is of another release than it knows: this library, transformers (whose config it reads) and SGLang of "
    "the releases in SGLang's pyproject, or its image"
)
_SAYS = pattern(r"Error in function '(\w+)' at|csrc/[\w/.]+\.cuh?:\d+")
_NOT_THIS_GPU = pattern(r"(?i)unsupported arch|architecture|compute capability|\bsm_?\d{2,3}|not supported on|cubin")


class _Part(NamedTuple):
    """A part of the model that kernels compute.

    Attributes:
        words: stand in names of files and functions, or in what the library says.
        what: names the part.
        look: what to choose instead.
    """

    words: re.Pattern[str]
    what: str
    look: str


# The first whose words fit counts.
_PARTS = (
    _Part(
        pattern(r"(?i)all_?reduce|mnnvl|nvshmem|trtllm_ar|\bcomm\b|all_?gather"),
        "the exchange between GPUs",
        "without --enable-flashinfer-allreduce-fusion, then --disable-custom-all-reduce",
    ),
    _Part(
        pattern(r"(?i)moe|grouped|batched_gemm|expert|shuffle_matrix|permute_indices"),
        "the experts of a MoE layer",
        "another --moe-runner-backend (triton serves most models and GPUs; flashinfer_cutlass or marlin NVFP4)",
    ),
    _Part(
        pattern(r"(?i)mamba|causal_conv|gdn|delta_rule|\bfla\b|kda|ssd"),
        "layers that keep states (Mamba, GDN)",
        "--mamba-backend triton and --linear-attn-backend triton, where the release has them",
    ),
    _Part(
        pattern(r"(?i)\bindexer|topk_transform|mqa_logits"),
        "the indexer of sparse attention, which chooses the keys",
        "shorter prompts and a smaller --chunked-prefill-size tell whether its length is what fails; another "
        "--attention-backend reads the same choice; then another build of the server",
    ),
    _Part(
        pattern(r"(?i)fmha|attention|paged|prefill|decode|\bmla|xqa|flash_attn"),
        "attention",
        "another --attention-backend (triton serves most models and GPUs)",
    ),
    _Part(
        pattern(r"(?i)sampl|top_?k|top_?p|min_?p|softmax"),
        "sampling",
        "--sampling-backend pytorch",
    ),
    _Part(
        pattern(r"(?i)gemm|scaled_mm|fp[48]|quant|\bmm_"),
        "quantised layers",
        "--fp8-gemm-backend (triton, cutlass) or --fp4-gemm-backend (flashinfer_cutlass, flashinfer_cudnn, marlin) of "
        "another library",
    ),
)


_BY_PATH = (
    (
        pattern(r"(?i)deep_?gemm"),
        "it is in DeepGEMM: once with SGLANG_ENABLE_JIT_DEEPGEMM=0, or another --fp8-gemm-backend (triton, "
        "cutlass) and --moe-runner-backend; then another release of SGLang, with the DeepGEMM that it brings",
    ),
    (
        pattern(r"(?i)flash[-_]?(?:attention|attn|mla)|/hopper/|flash_fwd"),
        "it is in FlashAttention or FlashMLA, which are built for some GPUs alone (FlashAttention 3 for 8.0 and 9.0): "
        "another --attention-backend (flashinfer, triton), and of sparse attention --nsa-prefill-backend and "
        "--nsa-decode-backend (later --dsa-…)",
    ),
    (
        pattern(r"(?i)deep_?ep\b"),
        "it is in DeepEP: once with --moe-a2a-backend none",
    ),
)


def of_path(message: str) -> str:
    """Return what to choose in place of a library that a message names by a file of its own; "" if it names none."""
    return next((look for words, look in _BY_PATH if words.search(message)), "")


def _explains(death: Death) -> bool:
    # Where no file of SGLang's is among the frames, vLLM is the server itself.
    of_one = (
        death.package in (_PACKAGES if death.caller else _PACKAGES - _SERVERS)
        or _SAYS.search(death.message) is not None
    )
    return of_one and not is_of_a_kind_first(death)


def part_of(death: Death) -> _Part | None:
    """Return the part of the model that was computed, by the names of its frames; None if they do not tell."""
    function = match[1] if (match := _SAYS.search(death.message)) and match[1] else death.frame.rpartition(" ")[2]
    places = (f"{function} {death.frame}", death.message[:200], death.caller, *reversed(death.frames[-6:]))
    return next((one for place in places for one in _PARTS if one.words.search(place)), None)


def part_named(kernel: str) -> _Part | None:
    """Return the part of the model that a kernel computes, by its name; None if that does not tell."""
    return next((one for one in _PARTS if one.words.search(kernel)), None)


_NOT_TRITON = {
    "the experts of a MoE layer": "another --moe-runner-backend than triton",
    "layers that keep states (Mamba, GDN)": "another --mamba-backend or --linear-attn-backend than triton, where the "
    "release has one",
    "attention": "another --attention-backend than triton (flashinfer, fa3)",
}


def look_beside(part: _Part, death: Death) -> str:
    """Return what to choose instead; where a kernel in Triton is what failed, something else than Triton."""
    return _NOT_TRITON.get(part.what, part.look) if death.package == "triton" else part.look


_OF_DRAFTS = pattern(r"\w*(?:eagle|nextn|mtp|dflash|dspark|spec_)\w*\.py:|.* \w*draft\w*$")


def _around(facts: LogFacts, death: Death) -> Iterator[str]:
    """Yield what made the call beside plain serving: sizes that a library refuses are mostly its bookkeeping."""
    asked = facts.settings
    if any(map(_OF_DRAFTS.match, death.frames)):
        yield "once without --speculative-algorithm: the call is a draft's, or verifies drafts"
        if asked.get("enable_dp_attention") == "True" and asked.get("dp_size") != asked.get("tp_size"):
            yield "once with --dp-size as large as --tp-size: attention over several ranks that drafts do not count on"
    if death.rank.startswith("PP") or asked.get("pp_size", "1") not in ("1", "None"):
        yield "once with --pp-size 1 (--tp for the other GPUs): a stage may lack what another one has computed"


_OF_COUNTS = pattern(r"(?i)num_tokens|num_rows|topk|q_len|max_q|batch_size|token count")
_SPARSE_FILE = pattern(r"(?i)sparse_mla|flash_mla|dsv4|\bdsa|nsa_|indexer")
_OF_SPARSE = (
    "a later flashinfer and sglang-kernel with the release of SGLang that pins them: attention of this model picks its "
    "keys, and few kernels do, each for some GPUs and widths; compare answers with those of another GPU after that"
)


def _of_a_verify(facts: LogFacts, death: Death) -> Iterator[str]:
    """Yield what to do where a kernel refused a number of rows of a server with drafts, which has several for each."""
    drafts = facts.settings.get("speculative_algorithm", "None")
    if drafts == "None" or any(map(_OF_DRAFTS.match, death.frames)) or not _OF_COUNTS.search(death.message):
        return
    yield (
        f"once without --speculative-algorithm {drafts}: a step that verifies drafts has several rows for each "
        "request, a number (or a width of top-k) that this kernel has no path for, on this GPU at least; memory and "
        "the size of the batch change nothing"
    )


def _tell(facts: LogFacts, death: Death) -> Finding:
    function = match[1] if (match := _SAYS.search(death.message)) and match[1] else death.frame.rpartition(" ")[2]
    part = part_of(death)
    sparse = part is not None and part.what == "attention" and _SPARSE_FILE.search(" ".join(death.frames[-2:]))
    said = " ".join(death.message.split())[:160]
    gpu = " on this GPU" if _NOT_THIS_GPU.search(death.message) else ""
    library = f"{death.package}, a library of kernels," if death.package in _PACKAGES else "A library of kernels"
    return Finding(
        rule=RULE.id,
        cause=f"{library} refused a call of SGLang's{gpu}, in {function or 'an unknown function'}"
        f"{f', which computes {part.what}' if part else ''}{f'; it says: {said}' if said else ''}.",
        confidence=Confidence.LIKELY if part else Confidence.POSSIBLE,
        evidence=(*of_failure(facts, death), *of_settings(facts, "attention_backend", "moe_runner_backend")),
        ruled_out_if=("the same call dies alike with another backend of that part",),
        advice=(
            *((_MISFIT,) if death.type_name in _OF_RELEASES else ()),
            *(("once with SGLANG_USE_AITER=0",) if death.package == "aiter" else ()),
            *_of_a_verify(facts, death),
            *((_OF_SPARSE,) if sparse else ()),
            *(
                ()
                if sparse
                else (part.look,)
                if part
                else ("once with --disable-cuda-graph and another backend of the part it is of",)
            ),
            *_around(facts, death),
            _OF_ITS_IMAGE.format(death.package) if death.package in _OF_IMAGES else _PINNED,
            "then a later release of SGLang",
        ),
        next_commands=("gemma4-triage doctor",),
    )


RULE = of_death("library-kernel", "a library of kernels refused a call", _explains, _tell)
