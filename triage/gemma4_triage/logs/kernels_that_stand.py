"""Kernels of TensorRT-LLM that FlashInfer brings: some releases have ones that never end on some GPUs of Blackwell."""

from __future__ import annotations

from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.late_pattern import pattern

_BACKENDS = ("moe_runner_backend", "attention_backend", "prefill_attention_backend", "decode_attention_backend")
_THEIRS = pattern(r"flashinfer_(?:trtllm|mxfp4)\w*|trtllm_\w+")
_NOTED = pattern(r"(?i)\bflashinfer[\w-]*[ =:v]{1,3}(\d+\.\d+\.\d+\w*(?:\.\w+)?)")
_NEWER_GPU = pattern(r"\bG?B300\b|\bSM_?103\b|\bsm_103a?\b")
_OTHER_RELEASE = (
    "another release of flashinfer, flashinfer-python, -cubin and -jit-cache of one number{0} (pip list | grep "
    "flashinfer): this server computes with {1}, kernels of TensorRT-LLM that it brings, and several releases have had "
    "some that stood on B300 and GB300 for ever (attention of 0.6.7, FP4 matrices of 0.6.14, which 0.6.13 and 0.6.15 "
    "do not have: SGLang 30919). One rank is in such a kernel then, the others wait in the next sum, and what times "
    "out there only tells of it: neither network nor NCCL is at fault"
)
_OTHER_BACKEND = (
    "once with another in the place of {0} (--moe-runner-backend flashinfer_cutlass or triton, --attention-backend fa4 "
    "or triton, as far as this model has it): if it then runs on, it was such a kernel; py-spy dump --native, or "
    "cuda-gdb, of the rank that is late names it"
)


def of_tensorrt(facts: LogFacts) -> tuple[str, ...]:
    """Return what to try where ranks wait for one that may stand in such a kernel; empty for a start without them."""
    given = [
        f"--{name.replace('_', '-')} {facts.settings.get(name, '')}" for name in _BACKENDS if _is_theirs(facts, name)
    ]
    if not given or not facts.served:
        return ()
    notes = facts.remarks["notes"].text if "notes" in facts.remarks else ""
    noted = _NOTED.search(notes)
    if noted is None and not _NEWER_GPU.search(notes) and "blackwell" not in facts.remarks:
        return ()
    than = f", earlier or later than the {noted[1]} of the notes" if noted else ""
    named = " and ".join(given)
    return (_OTHER_RELEASE.format(than, named), _OTHER_BACKEND.format(named))


def _is_theirs(facts: LogFacts, name: str) -> bool:
    return _THEIRS.fullmatch(facts.settings.get(name, "")) is not None
