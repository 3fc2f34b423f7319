"""Advice over a log of a server without CUDA, with what its device has: most is written for GPUs of NVIDIA.

A change that the device does not know is not advised there; a list of backends is that of the device.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from gemma4_triage.finding import Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.other_platform import platform

_BACKENDS: dict[str, tuple[str, ...]] = {
    "rocm": ("triton", "aiter"),
    "xpu": ("triton", "intel_xpu"),
    "cpu": ("intel_amx", "torch_native"),
    "npu": ("ascend",),
    "hpu": ("torch_native",),
    "mps": ("torch_native",),
    "musa": ("triton", "torch_native"),
}
"""Attention backends of a device, by PyTorch's name of it."""
_NAME = r"(?:triton|flashinfer|fa[34]|flashmla|trtllm_mh?la|trtllm_mha|torch_native|aiter|wave)"
_LISTED = rf"\((?:then )?{_NAME}(?:(?:, then |, | or |, or ){_NAME})*(?: serves most[^)]*)?\)"
_ANOTHER = pattern(rf"(another --attention-backend(?: than (?P<now>\w+))?) {_LISTED}")
_HAS_NONE = pattern(r"^(?:once )?(?:with )?another --attention-backend")
_ALSO_ANOTHER = pattern(r",? (?:and|or) (?:once )?(?:with )?another --attention-backend(?: \([^()]*\))?")
_OF_NVIDIA = pattern(
    r"--attention-backend (?:fa[34]|flashinfer|flashmla|trtllm\w*)\b|compute-sanitizer|--enable-(?:torch-)?symm-mem"
)
_OF_NCCL = r"\bNCCL_\w+|--disable-custom-all-reduce|--enable-nccl-nvls"
_OF_A_GPU = r"--(?:disable-)?(?:piecewise-)?cuda-graph|\bCUDA_LAUNCH_BLOCKING\b|nvidia-smi|--attention-backend triton\b"
# On a CPU a step is not begun before the one before it has ended: SGLang's guide has overlap off there.
_OVERLAP = r"^(?:once )?without --disable-overlap-schedule"
_ABOUT_A_GPU = pattern(r"\b(?:the|first|each|every) GPUs?\b|\bGPU memory\b")
_NOT_THERE: dict[str, re.Pattern[str]] = {
    "cpu": pattern(rf"{_OF_NCCL}|{_OF_A_GPU}|{_OVERLAP}"),
    "mps": pattern(rf"{_OF_NCCL}|{_OF_A_GPU}|^(?:once )?without --disable-overlap-schedule"),
    "hpu": pattern(rf"{_OF_NCCL}|{_OF_A_GPU}"),
    "npu": pattern(rf"{_OF_NCCL}|nvidia-smi"),
    "xpu": pattern(rf"{_OF_NCCL}|nvidia-smi|--disable-(?:piecewise-)?cuda-graph"),
}
"""What a change may not ask for on a device: it has no such thing, or the server there passes it over."""
_NOTED = pattern(r"\bby the note in line \d|\bas line \d+ has it|\bas the scores that were noted\b")
"""What somebody has tried there holds there."""
_OPTIONS = pattern(r": |[;,(]| or ")
_NAMED = pattern(r"\b(?:on|of) (?:a CPU|NPUs?|an NPU|Ascend|ROCm|XPU|Gaudi)\b|\bAMD\b")
"""What names a device has been written with it in mind."""
_WITHOUT_GRAPHS = frozenset({"cpu", "mps", "hpu", "xpu"})
_FOR_ALL = (
    (r"flashmla_sparse, fa3, tilelang, trtllm\b", {"rocm": "tilelang, aiter"}),
    (r"\bnvidia-smi\b(?: -l 1| pmon| -q -d [\w,]+)?", {"rocm": "rocm-smi", "npu": "npu-smi info", "xpu": "xpu-smi"}),
    (
        r" and CUDA_LAUNCH_BLOCKING=1|\bCUDA_LAUNCH_BLOCKING=1 and |,? CUDA_LAUNCH_BLOCKING=1",
        {
            "rocm": " and AMD_SERIALIZE_KERNEL=3",
            "npu": " and ASCEND_LAUNCH_BLOCKING=1",
            "cpu": "",
            "mps": "",
            "hpu": "",
            "xpu": "",
        },
    ),
)
_GRAPHS_OUT = (
    (r" cuda graph: False beside more requests than were captured \(--cuda-graph-max-bs\),", ""),
    (
        r"--disable-cuda-graph, --disable-radix-cache and --disable-overlap",
        "--disable-radix-cache and --disable-overlap",
    ),
    (r"with --disable-cuda-graph and the image", "with the image"),
    (r" Then once with --disable-cuda-graph, then a later release", " Then a later release"),
    (r", --disable-cuda-graph and --disable-radix-cache", " and --disable-radix-cache"),
    (r" and --disable-cuda-graph\b|--disable-cuda-graph and |, --disable-cuda-graph(?=[ ,.:;)])", ""),
)
_NCCL_OUT = (
    (
        r"once each with --disable-custom-all-reduce, --disable-overlap-schedule and NCCL_P2P_DISABLE=1",
        "once with --disable-overlap-schedule",
    ),
    (r",? and of several GPUs with --disable-custom-all-reduce and NCCL_P2P_DISABLE=1", ""),
)
_ON_A_CPU = (
    (r"; of the GPU: torch's own reserve beside the pools", ""),
    (r": GPUs stand at 100% with little power\. ", ". "),
    (r" \(100% of a GPU while nothing runs is only a rank that waits for work: --sleep-on-idle\)", ""),
    (r", more GPUs, --kv-cache-dtype fp8_e4m3\)", ")"),
)


def for_its_device(found: Iterable[Finding], facts: LogFacts) -> tuple[Finding, ...]:
    """Return the findings with advice that holds on the log's device; those of one public thread as they are."""
    device = platform(facts)
    return tuple(_of_device(one, device) for one in found) if device else tuple(found)


_OF_A_THREAD = frozenset({"like-incidents", "known-issue"})


def _of_device(finding: Finding, device: str) -> Finding:
    if finding.rule in _OF_A_THREAD:
        return finding
    fit = tuple(dict.fromkeys(filter(None, (on_device(one, device) for one in finding.advice))))
    return finding.model_copy(update={"advice": fit or finding.advice})


def on_device(advice: str, device: str) -> str:
    """Return advice as it holds on a device; "" where the change that it begins with is none there.

    Args:
        advice: a change, and behind a colon why.
        device: by PyTorch's name (ROCm: rocm); "" for a GPU of NVIDIA.
    """
    if not device or _NOTED.search(advice) or _NAMED.search(advice):
        return advice
    for words, instead in _words(device):
        advice = words.sub(instead, advice)
    advice = _ANOTHER.sub(lambda found: _others(found, device), advice)
    alone = len(_BACKENDS.get(device, ())) == 1
    advice = _ALSO_ANOTHER.sub("", advice) if alone else advice
    # Of several options the first is the change, and others stand beside it.
    change = _OPTIONS.split(advice)[0]
    if _OF_NVIDIA.search(change) or (device in _NOT_THERE and _NOT_THERE[device].search(change)):
        return ""
    if (alone and _HAS_NONE.search(change)) or (device == "cpu" and _ABOUT_A_GPU.search(advice)):
        return ""
    return advice


def _others(found: re.Match[str], device: str) -> str:
    """Return the list of backends that a device has beside the one in use; as it stands where it has each of them."""
    own = _BACKENDS.get(device, ())
    if set(re.findall(rf"\b{_NAME}\b", found[0][len(found[1]) :])) - {found["now"]} <= set(own):
        return found[0]
    others = [name for name in own if name != found["now"]]
    return f"{found[1]} ({', '.join(others)})" if others else found[1]


@cache
def _words(device: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    """Return expressions and what stands in their place, compiled where a log of such a device asks for them."""
    rules = [(words, instead[device]) for words, instead in _FOR_ALL if device in instead]
    rules += _GRAPHS_OUT if device in _WITHOUT_GRAPHS else ()
    rules += _NCCL_OUT if device in _NOT_THERE else ()
    rules += _ON_A_CPU if device == "cpu" else ()
    return tuple((re.compile(words), instead) for words, instead in rules)
