"""A kernel or a library of CUDA failed in a way that names no table and no buffer."""

from __future__ import annotations

import re

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import of_death, of_failure, of_settings

_CAUSES = (
    (
        re.compile(r"(?:CUBLAS|CUDNN)_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)"),
        "A library of CUDA got no memory for its workspace: the pools took all.",
        "lower --mem-fraction-static by 0.03 to 0.05",
    ),
    (
        re.compile(r"(?:CUBLAS|CUDNN)_STATUS_(?:NOT_SUPPORTED|INVALID_VALUE|ARCH_MISMATCH)"),
        "A library of CUDA was asked for a product that it does not have for these sizes or types.",
        "another --dtype or backend of the quantised GEMM; the frame names the layer",
    ),
    (
        re.compile(
            r"misaligned address|unspecified launch failure|CUBLAS_STATUS_EXECUTION_FAILED|illegal instruction|"
            r"CUDA_EXCEPTION"
        ),
        "A kernel failed on the device. It is noticed later: the frame is not the place.",
        "CUDA_LAUNCH_BLOCKING=1 and --disable-cuda-graph name the kernel; then try another backend",
    ),
    (
        re.compile(
            r"CUDA error: invalid (?:argument|configuration|resource handle|device ordinal)|"
            r"too many resources requested"
        ),
        "A kernel was launched with sizes that this GPU does not take, or on a GPU that the process does not see.",
        "CUDA_LAUNCH_BLOCKING=1 names the launch; check CUDA_VISIBLE_DEVICES against --tp and --base-gpu-id",
    ),
)


def _found(death: Death) -> tuple[str, str] | None:
    return next(((cause, advice) for words, cause, advice in _CAUSES if words.search(death.message)), None)


def _explains(death: Death) -> bool:
    return _found(death) is not None


def _tell(facts: LogFacts, death: Death) -> Finding:
    cause, advice = _found(death) or ("", "")
    return Finding(
        rule=RULE.id,
        cause=cause,
        confidence=Confidence.POSSIBLE,
        evidence=(
            *of_failure(facts, death),
            *of_settings(facts, "attention_backend", "quantization", "kv_cache_dtype"),
        ),
        advice=(advice, "the first rank and the first such line count: later ones follow from it"),
    )


RULE = of_death(
    "kernel-failed", "a kernel or a library of CUDA failed", _explains, _tell, alarms=("device", "signalled")
)
