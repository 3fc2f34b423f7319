"""Probe `geometry`, where trtllm_mha calls a decode's kernel: it is given the window that its layer has.

A window that is left out is no wrong index: a sliding layer then reads keys that its window has left, and page 0 where
these were given back, and answers change in silence. It is a number on the host: eager at every call, under CUDA graphs
at their capture, which keep it. 0.5.13.post1 calls the kernel directly, so there is nothing to ask.
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
_SITE = "TRTLLMHAAttnBackend._run_fixed_q_len_decode"


def before_attention(backend: Any, q: Any, k: Any, v: Any, layer: Any, *args: Any, **kwargs: Any) -> None:
    """Remember, before `forward_decode` and `forward_extend`, whose attention it is."""
    backend.__dict__[_ATTENDING] = layer


def before_decode_kernel(backend: Any, *args: Any, window_left: int | None = None, **kwargs: Any) -> None:
    """Run before 0.5.23's `_run_fixed_q_len_decode(..., window_left=...)`. Raises TrappedViolation."""
    layer = backend.__dict__.get(_ATTENDING)
    if layer is None:
        return
    own = NO_WINDOW if layer.sliding_window_size is None else int(layer.sliding_window_size)
    given = NO_WINDOW if window_left is None else int(window_left)
    if given == own or runner_of(backend) is None:
        return
    finding = Finding(
        verdict="geometry_mismatch",
        severity=Severity.FATAL,
        what="kernel_window",
        found=given,
        expected=f"{own}, as the layer has it",
        why="the kernel shows each query another number of keys than the layer is to see; -1 is all of them",
        role=role_of(backend),
        layers=(int(layer.layer_id),),
    )
    # A capture serves nobody yet, and its graph is met again.
    capturing = torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    violation, where = Violation(finding.verdict, (), 0), f"{_SITE} ({finding.what})"
    describe = partial(_draft, finding, backend)
    act = Mode.LOG if capturing else None
    current.guard().report(violation, RULE, where, describe, act=act, key=(finding.role,), once=True)


def _draft(finding: Finding, backend: Any) -> DumpDraft:
    return replace(finding_draft(finding, [], _SITE, runner_of(backend)), step=step_of(backend))
