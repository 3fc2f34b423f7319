"""Which kind of machine a log is of, as far as its command, its notes or its lines say: above all one without CUDA."""

from __future__ import annotations

from typing import Any

from gemma4_triage.logs.facts import LogFacts, Place, Remark
from gemma4_triage.logs.late_pattern import pattern

_NAMES = {
    "rocm": "AMD GPUs (ROCm)",
    "xpu": "Intel GPUs (XPU)",
    "npu": "Ascend NPUs",
    "hpu": "Gaudi (HPU)",
    "musa": "Moore Threads GPUs (MUSA)",
    "mps": "Apple GPUs (MPS)",
    "cpu": "a CPU alone",
}
_BY_BACKEND = {"intel_xpu": "xpu", "intel_amx": "cpu", "ascend": "npu", "aiter": "rocm", "wave": "rocm"}
_NOTED = (
    (
        "of_rocm",
        pattern(r"\bMI(?:100|2[15]0X?|300[AX]?|3[0-9]{2}X)\b|\bgfx(?:9[04-5]|1[0-2]\d)|(?i:\brocm)|AMD Instinct"),
    ),
    ("of_xpu", pattern(r"\bIntel Arc\b|\bArc (?:Pro )?[AB]\d\d|\+xpu\b|\bxpu\b|\bXPU\b")),
    ("of_npu", pattern(r"\bAscend\b|\bnpu\b|\bNPU\b|\btorch_npu\b")),
)
_OF_RTX = pattern(
    r"\bDGX Spark\b|\bGB10\b|\bRTX (?:50[5-9]0|PRO [2-6]\d00)|\b(?i:sm_?12[01])|\bcompute capability 12\.[01]"
)
_BLACKWELL = pattern(r"^#.*\bG?B[23]00\b")
_NO_AMX = pattern(
    r"(?i)\b(?:no|not|without|lacks?|missing|n't)\b[^.;]{0,30}\bAMX\b|\bAMX\b[^.;]{0,20}\b(?:not|missing|lacks?|n't)\b"
)
_AT_WORK = pattern(r"#.*\b(?:cicc|cudafe\+\+|nvcc)\b.*\.cu\b")
MARKS = (
    *(
        (mark, "of_rocm")
        for mark in (b"/opt/rocm", b"HIPAllocator", b"AMD Instinct", b"[aiter] ", b"+rocm", b"HIP error", b"MI300X")
    ),
    (b"+xpu", "of_xpu"),
    (b"torch_npu", "of_npu"),
    (b"does not support Intel AMX", "no_amx"),
)
"""What a line has that only such a machine's server writes, beside those of remarks.py."""
SHOWN = frozenset({"compiles_at_work", "no_amx", "of_xpu", "of_npu", "of_rocm"})
"""Names under which `keep` keeps what notes show."""
_OF_NVIDIA = ("rtx_blackwell", "blackwell")
_LONGEST = 1000  # bytes of a line


def keep(kept: dict[str, Remark], line: bytes, place: Place) -> None:
    """Keep the first command or note that names a kind of machine, or a compiler that somebody saw at work."""
    text = line[:_LONGEST].decode(errors="replace").strip()
    for name, words in (
        *_NOTED,
        ("rtx_blackwell", _OF_RTX),
        ("compiles_at_work", _AT_WORK),
        ("no_amx", _NO_AMX),
        ("blackwell", _BLACKWELL),
    ):
        if words.search(text):
            kept.setdefault(name, Remark(place, "", text))


def platform(facts: LogFacts) -> str:
    """Return the kind of machine, by its name in PyTorch (ROCm: rocm); "" where it is CUDA's, or nothing says."""
    if any(name in facts.remarks for name in _OF_NVIDIA):
        return ""
    known = {**facts.arguments, **facts.settings}
    device = known.get("device", "None")
    if device in _NAMES:
        return device
    if (named := _BY_BACKEND.get(known.get("attention_backend", ""))) is not None:
        return named
    if known.get("SGLANG_USE_CPU_ENGINE", "0") not in ("0", "false"):
        return "cpu"
    return next((name.removeprefix("of_") for name, _ in _NOTED if name in facts.remarks), "")


def machine(facts: LogFacts) -> str:
    """Return the kind of machine as sentences name it; "" where it is CUDA's, or nothing says."""
    return _NAMES.get(platform(facts), "")


_TOOLKIT = pattern(
    r"CUDA_HOME|CMake\w*CUDA|CUDA_?Toolkit|Could not find (?:nvcc|CUDA)|(?i:nvcc\b.{0,40}(?:not found|No such))"
)
_LIBRARY = pattern(r"\b(?P<name>lib(?:cu(?:da|dart|blas\w*|dnn\w*|sparse\w*|fft|rand|solver)|nvrtc|nvJitLink))\b")
_BY_ITS_WORDS = "is not loaded in the current process"
_BUILD = pattern(r"CMake")
_OWN_IMAGE = (
    "SGLang's image or install guide of {0}, in a fresh environment: what pip brings by itself is built for CUDA (pip "
    "uninstall sgl-kernel sglang-kernel flashinfer-python first; sgl-kernel has a build of its own there, "
    "setup_rocm.py for AMD)"
)
_OTHER_BUILD = (
    "the build of that platform: of sgl-kernel python setup_rocm.py install for AMD GPUs, pyproject_cpu.toml for a "
    "CPU, packages of their own for Intel and Ascend; or its image, which has it built"
)
_OTHER_RELEASE = (
    "a later release of SGLang or its image for {0}, or the last one with which this ran: a step that has no code for "
    "them there was given CUDA's, which is compiled as it runs; CUDA_HOME and nvcc do not help"
)


def without_cuda(facts: LogFacts, said: str) -> dict[str, Any] | None:
    """Return cause and advice where something of CUDA lacks on a machine that has none; None where it is not that.

    Args:
        facts: the log.
        said: what says that a library or the toolkit of CUDA is not there.
    """
    where = machine(facts)
    toolkit, library = _TOOLKIT.search(said), _LIBRARY.search(said)
    if not where or not (toolkit or library) or _BY_ITS_WORDS in said:
        return None
    so_said = f"The log speaks of {where}, and what failed is CUDA's"
    if library:
        cause = f"{so_said}: a package looks for {library['name']}, so it was built for GPUs of NVIDIA."
        return {"cause": cause, "advice": (_OWN_IMAGE.format(where),)}
    if _BUILD.search(said):
        return {"cause": f"{so_said}: this build asks for nvcc.", "advice": (_OTHER_BUILD,)}
    cause = f"{so_said}: a kernel is to be compiled with nvcc, which such a machine has not."
    return {"cause": cause, "advice": (_OTHER_RELEASE.format(where),)}
