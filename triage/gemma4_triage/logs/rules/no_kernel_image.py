"""A compiled wheel has no kernel for this GPU: the GPU is older than what it was built for, or newer."""

from __future__ import annotations

import re

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import of_death, of_failure, pattern, remarked, says
from gemma4_triage.logs.rules import library_kernel

WORDS = pattern(
    r"(?i)only support(?:s|ed on) sm ?\d+ and above|no (?:CUDA )?kernel image (?:is )?available|"
    r"sm_?\d+ is not compatible with the current PyTorch|"
    r"cudaErrorNoKernelImageForDevice|(?:CUDA|HIP) error: invalid device function|"
    r"device kernel image is invalid|"
    r"is for sm_?\d+(?:-sm_?\d+)?, but was built for sm_?\d+"
)
_OLD, _NEW = 80, 120  # compute capability: the least that SGLang's kernels are built for, and consumer Blackwell
_CAPABILITY = pattern(r"(?i)(?:\bsm_?|compute capability[: ]*)(\d+)\.?(\d)?\b")
_NEWER = (
    "the GPU is newer than the build: sglang-kernel and torch of CUDA 12.8 or later (cu128, cu130), or a later image "
    "of SGLang"
)
_OLDER = (
    "the GPU is older than the build: SGLang's kernels begin at compute capability 8.0 (Ampere); take a later GPU, or "
    "build sglang-kernel from source for this one"
)
_LIBRARY = pattern(r"_deps/repo-([\w-]+)-src|\b(flash_?mla|flash_attn|deep_gemm|deep_ep|flashinfer)\b", re.IGNORECASE)
_OTHER = (
    "another backend of what that library computes: --attention-backend (and --nsa-prefill-backend, "
    "--nsa-decode-backend, later --dsa-…), --moe-runner-backend or --moe-a2a-backend; not every GPU has kernels in each"
)
_NOT_HERE = "shares of memory, --cuda-graph-max-bs and --disable-cuda-graph do not help, whatever the log proposes"
_COMPARE = (
    "nvidia-smi --query-gpu=name,compute_cap --format=csv, and torch.cuda.get_arch_list() for what torch was built for"
)


def _tell(facts: LogFacts, death: Death) -> Finding:
    capability = _capability(facts, death)
    if capability is not None and capability < _OLD:
        cause = f"{_LACKS} The GPU is older than compute capability 8.0, with which those kernels begin."
        advice = (_OLDER, _NOT_HERE)
    elif capability is not None and capability >= _NEW:
        cause = f"{_LACKS} The GPU is newer than the build."
        advice = (_NEWER, _NOT_HERE)
    else:
        cause = f"{_LACKS} The build is for other architectures: older ones, such as one before Blackwell, or later "
        cause += "ones than this GPU's."
        advice = (_COMPARE, _NEWER, _OLDER, _NOT_HERE)
    if _JIT.search(death.message) or "compiled_for" in facts.remarks:
        cause = "A kernel that was compiled on this machine has no code for this GPU: it was compiled for another "
        cause += "architecture than this GPU's."
        advice = (JIT_ARCHITECTURE, _NOT_HERE)
    # A message that names no library has one in its innermost frame.
    if (library := _LIBRARY.search(death.message) or _LIBRARY.fullmatch(death.package)) is not None:
        cause += f" It is {library[1] or library[2]}'s kernel."
        advice = (library_kernel.of_path(death.message) or _OTHER, *advice)
    return Finding(
        rule=RULE.id,
        cause=cause,
        confidence=Confidence.LIKELY,
        evidence=(
            *of_failure(facts, death),
            *remarked(facts, "capability", "what the start said of the GPU"),
            *remarked(facts, "compiled_for", "what it was compiled for"),
        ),
        ruled_out_if=("torch.cuda.get_arch_list() and the wheel's files name this GPU's compute capability",),
        advice=advice,
        next_commands=("gemma4-triage doctor",),
    )


_JIT = pattern(r"(?i)Runtime check failed at|\bjit\b|tvm_ffi|csrc/include")
JIT_ARCHITECTURE = (
    "TVM_FFI_CUDA_ARCH_LIST (and TORCH_CUDA_ARCH_LIST, FLASHINFER_CUDA_ARCH_LIST) of this GPU, as 8.9, 9.0a, 10.0 or "
    "12.0, then rm -r ~/.cache/tvm-ffi ~/.cache/flashinfer ~/.cache/torch_extensions: the architecture is taken from "
    "nvidia-smi, which an old driver answers wrongly, or from the host's first card, whatever CUDA_VISIBLE_DEVICES "
    "says; hold nvidia-smi --query-gpu=compute_cap --format=csv against torch.cuda.get_device_capability()"
)
_LACKS = "A compiled package, such as sglang-kernel or torch, has no kernel for this GPU."


def _capability(facts: LogFacts, death: Death) -> int | None:
    """Return the GPU's compute capability times ten, as the failure or the start tells it; None if neither does."""
    remark = facts.remarks.get("capability")
    if remark is not None and re.search(r"(?i)below sm_?80", remark.text):
        return _OLD - 5
    found = _CAPABILITY.search(death.message) or (_CAPABILITY.search(remark.text) if remark else None)
    if found is None:
        return None
    number = int(found[1])
    return number if number >= 30 else number * 10 + int(found[2] or 0)


RULE = of_death(
    "no-kernel-image", "a wheel has no kernel for this GPU", says(WORDS), _tell, alarms=("device", "sigquit", "child")
)
