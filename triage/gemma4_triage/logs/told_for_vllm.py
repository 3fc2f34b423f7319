"""Advice over a log of vLLM, by that engine's own arguments: most rules name SGLang's, which vLLM does not know."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from gemma4_triage.finding import Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.late_pattern import pattern

_SERVES = ("vllm", "vllm_drafts", "vllm_serves", "vllm_start", "vllm_waits", "vllm_captures")
_FRAME = pattern(r"gpu_model_runner\.py:|multiproc_executor\.py:|core\.py:\d+ (?:step_fn|_process_engine_step)$")


def of_vllm(facts: LogFacts) -> bool:
    """Say whether the log is of vLLM alone: its command, its lines or its package, and nothing of SGLang's."""
    if facts.served or facts.starts or any(death.path or death.caller for death in facts.deaths):
        return False
    if any(name in facts.remarks for name in _SERVES):
        return True
    return any(one.package == "vllm" or any(map(_FRAME.match, one.frames)) for one in facts.deaths)


# In this order: what is longer comes first. What has no counterpart is left to _ONLY_SGLANG.
_INSTEAD = (
    (
        r"--cuda-graph-backend-prefill[= ]disabled \(.*?\)",
        '--compilation-config \'{"cudagraph_mode": "FULL_DECODE_ONLY"}\'',
    ),
    (r"--disable-cuda-graph and CUDA_LAUNCH_BLOCKING=1", "--enforce-eager and CUDA_LAUNCH_BLOCKING=1"),
    (r"--disable-(?:piecewise-)?cuda-graph\b(?!-)", "--enforce-eager"),
    (r"--cuda-graph-max-bs\b", "--max-cudagraph-capture-size"),
    (r"--mem-fraction-static\b", "--gpu-memory-utilization"),
    (r"--max-running-requests\b", "--max-num-seqs"),
    (r"--(?:chunked-prefill-size|max-prefill-tokens)\b", "--max-num-batched-tokens"),
    (r"--disable-radix-cache\b", "--no-enable-prefix-caching"),
    (r"--disable-overlap-schedule\b", "--no-async-scheduling"),
    (r"--speculative-(?:algorithm|draft-model-path)\b", "--speculative-config"),
    (r"--context-length\b", "--max-model-len"),
    (r"--tp(?:-size)?\b", "--tensor-parallel-size"),
    (r"--pp(?:-size)?\b", "--pipeline-parallel-size"),
    (r"--disable-flashinfer-autotune\b", "--no-enable-flashinfer-autotune"),
    (r"--ep-size 1 \(--tensor-parallel-size alone\)", "no --enable-expert-parallel"),
    (
        r"in --json-model-override-args, with SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1\)",
        "in --hf-overrides, with VLLM_ALLOW_LONG_MAX_MODEL_LEN=1)",
    ),
    (r"; --allow-auto-truncate cuts them instead", "; truncate_prompt_tokens in the request cuts them instead"),
    (r"--ep of the same number", "--enable-expert-parallel"),
    (r"--moe-runner-backend\b", "--moe-backend"),
    (r"--lora-paths\b", "--lora-modules"),
    (r"with --sampling-backend pytorch\b", "with VLLM_USE_FLASHINFER_SAMPLER=0"),
    (r"flashinfer-python and sglang-kernel\b", "flashinfer-python"),
    (r"; --enable-nan-detection names the step", ""),
    (r" ?--sampling-backend pytorch\b", " and VLLM_USE_FLASHINFER_SAMPLER=0"),
    (r"--attention-backend triton\b", "--attention-backend TRITON_ATTN"),
    (r"\(triton serves most models and GPUs\)", "(TRITON_ATTN serves most models and GPUs)"),
    (r"\(triton, (?:flashinfer|fa3)(?:, (?:fa3|flashinfer))?\)", "(TRITON_ATTN, FLASH_ATTN, FLASHINFER)"),
    (r"SGLANG_FLASHINFER_WORKSPACE_SIZE", "VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE"),
    (r"SGLANG_ENABLE_JIT_DEEPGEMM=0", "VLLM_USE_DEEP_GEMM=0"),
    (r"--log-requests --log-requests-level 2\b", "--enable-log-requests"),
    (r"/health_generate\b", "/health"),
    (r"\b(release|image|build|code) of SGLang\b", r"\1 of vLLM"),
    (r"\bSGLang's (?=pyproject|own|image|code)", "vLLM's "),
)
_ONLY_SGLANG = pattern(
    r"SGLANG_\w|--(?:speculative-(?!config)|dsa-|nsa-|mamba-backend|linear-attn-backend|enable-dp-attention|schedule-|"
    r"hicache-|enable-hierarchical|disaggregation-|moe-a2a|deepep-mode|fp[48]-gemm|cuda-graph-backend|allow-auto|"
    r"enable-two-batch|disable-cuda-graph-padding|enable-nan-detection|swa-full|enable-mixed-chunk|grammar-backend|"
    r"sleep-on-idle|enable-deterministic|log-requests-level)|/generate\b|collect URL twice"
)
_OF_BOTH = pattern(r"vLLM:|\bof vLLM (?:--|VLLM_)")
_SGLANG_COMMAND = ("gemma4-triage serve", "gemma4-triage pools", "gemma4-triage repro")


@cache
def _words() -> tuple[tuple[re.Pattern[str], str], ...]:
    """Return expressions and what stands in their place, compiled where a log of vLLM asks for them."""
    return tuple((pattern(said), instead) for said, instead in _INSTEAD)


def for_its_engine(found: Iterable[Finding], facts: LogFacts) -> tuple[Finding, ...]:
    """Return the findings with vLLM's arguments, and without what SGLang alone has, where the log is vLLM's."""
    return tuple(map(_of_vllm, found)) if of_vllm(facts) else tuple(found)


def _of_vllm(finding: Finding) -> Finding:
    advice = tuple(dict.fromkeys(map(in_vllm, finding.advice)))
    fit = tuple(one for one in advice if _OF_BOTH.search(one) or not _ONLY_SGLANG.search(one))
    return finding.model_copy(
        update={
            "advice": fit or advice,
            "ruled_out_if": tuple(map(in_vllm, finding.ruled_out_if)),
            "next_commands": tuple(one for one in finding.next_commands if not one.startswith(_SGLANG_COMMAND)),
        }
    )


def in_vllm(advice: str) -> str:
    """Return a sentence with vLLM's arguments in place of SGLang's; as it is where it names both engines' own."""
    if "vLLM" in advice:
        return advice
    for words, instead in _words():
        advice = words.sub(instead, advice)
    return advice
