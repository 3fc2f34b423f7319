"""Probe `geometry`, where trtllm_mha calls a decode's kernel: it is given the window and the scale of its layer.

A window that is left out is no wrong index: a sliding layer then reads keys that its window has left, and page 0 where
these were given back, and answers change in silence. So they do with another scale of the scores, which is asked where
keys and values lie as they were given, in none of 8 bits or fewer. Both are numbers on the host: eager at every call,
under CUDA graphs at their capture, which keep them. 0.5.13.post1 calls the kernel directly, so there is nothing to ask.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import torch

from gemma4_dumps.draft import DumpDraft
from gemma4_runtime import current
from gemma4_runtime.checks.geometry import NO_WINDOW, Finding, Severity
from gemma4_runtime.checks.violation import Violation
from gemma4_runtime.indices.owner import role_of, runner_of, step_of
from gemma4_runtime.probes.geometry import RULE, finding_draft
from gemma4_runtime.settings import Mode

_ATTENDING = "_gemma4_attending"
_UNSCALED = (torch.float32, torch.float16, torch.bfloat16)
"""Types in which the cache keeps what it is given, so that nothing but the layer's scale is multiplied."""
_SITE = "TRTLLMHAAttnBackend._run_fixed_q_len_decode"


def before_attention(backend: Any, q: Any, k: Any, v: Any, layer: Any, *args: Any, **kwargs: Any) -> None:
    """Remember, before `forward_decode` and `forward_extend`, whose attention it is."""
    backend.__dict__[_ATTENDING] = layer


def before_decode_kernel(
    backend: Any, *args: Any, window_left: int | None = None, bmm1_scale: Any = None, **kwargs: Any
) -> None:
    """Run before 0.5.23's `_run_fixed_q_len_decode(..., bmm1_scale=..., window_left=...)`. Raises TrappedViolation."""
    layer = backend.__dict__.get(_ATTENDING)
    if layer is None or runner_of(backend) is None:
        return
    own = NO_WINDOW if layer.sliding_window_size is None else int(layer.sliding_window_size)
    given = NO_WINDOW if window_left is None else int(window_left)
    if given != own:
        why = "the kernel shows each query another number of keys than the layer is to see; -1 is all of them"
        _report(backend, layer, "kernel_window", given, own, why)
    # A scale on the device is one that was multiplied by a query's.
    scale = bmm1_scale if isinstance(bmm1_scale, float | int) else None
    if scale is not None and backend.data_type in _UNSCALED and scale != layer.scaling:
        why = "the kernel multiplies the scores by another number than the layer's own"
        _report(backend, layer, "kernel_scale", f"{scale:g}", f"{layer.scaling:g}", why)


def _report(backend: Any, layer: Any, what: str, found: int | str, expected: int | str, why: str) -> None:
    finding = Finding(
        verdict="geometry_mismatch",
        severity=Severity.FATAL,
        what=what,
        found=found,
        expected=f"{expected}, as the layer has it",
        why=why,
        role=role_of(backend),
        layers=(int(layer.layer_id),),
    )
    # A capture serves nobody yet, and its graph is met again.
    capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    violation, where = Violation(finding.verdict, (), 0), f"{_SITE} ({finding.what})"
    describe = partial(_draft, finding, backend)
    act = Mode.LOG if capturing else None
    current.guard().report(violation, RULE, where, describe, act=act, key=(finding.role, what), once=True)


def _draft(finding: Finding, backend: Any) -> DumpDraft:
    return replace(finding_draft(finding, [], _SITE, runner_of(backend)), step=step_of(backend))
