"""A compiled wheel has no kernel for this GPU: the GPU is older than what it was built for, or newer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Evidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import of_death, of_failure, over, remarked, says
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
            *_noted(facts),
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
    return _by_notes(facts) if found is None else _times_ten(found)


def _times_ten(found: re.Match[str]) -> int:
    number = int(found[1])
    return number if number >= 30 else number * 10 + int(found[2] or 0)


_OLD_CARDS = pattern(r"\b(?:RTX 20[678]0|GTX 1[06]\d\d|(?:Tesla )?(?:T4|V100|P100|P40)|TITAN (?:V|RTX|Xp?))\b")
_OTHER_CARDS = pattern(
    r"\b(?:[AHBL](?:4|10|20|30|40|100|200|800)[GS]?|GB[23]00|RTX ?[34]0[5-9]0|[34]090|A[456]000|MI\d{3}X?)\b"
)
_NEW_CARDS = pattern(r"\b(?:RTX 50[5-9]0|RTX PRO [2-6]\d00|GB10|DGX Spark)\b", re.IGNORECASE)


def _noted(facts: LogFacts) -> Iterator[Evidence]:
    """Yield the note that names the GPU, where nothing else in the log does."""
    said = facts.remarks.get("notes")
    if said is not None and "capability" not in facts.remarks and _by_notes(facts) is not None:
        named = (_CAPABILITY, _OLD_CARDS, _NEW_CARDS)
        line = next(one for one in said.text.splitlines() if any(words.search(one) for words in named))
        yield over(facts, "notes", line, "what a note says of the GPU")


def _by_notes(facts: LogFacts) -> int | None:
    """Return the capability that notes beside the log name, or that of a card in them; None if it is not one alone."""
    notes = facts.remarks["notes"].text if "notes" in facts.remarks else ""
    named = {_times_ten(found) for found in _CAPABILITY.finditer(notes)}
    if not named and not _OTHER_CARDS.search(notes):
        old, new = _OLD_CARDS.search(notes), _NEW_CARDS.search(notes)
        named = {_OLD - 5} if old and not new else {_NEW} if new and not old else set()
    return named.pop() if len(named) == 1 else None


RULE = of_death(
    "no-kernel-image", "a wheel has no kernel for this GPU", says(WORDS), _tell, alarms=("device", "sigquit", "child")
)
