"""The end of `LogitsProcessor._get_logits`: logits as fp32 and capped, by our kernel instead of a copy and a kernel.

An edit asks here ahead of these two. Where the answer is None they run as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gemma4_kernels.capped_logits.launch import capped_logits
from gemma4_runtime.current import switched_on
from gemma4_runtime.fusion.eligible import rows_reason, server_reason
from gemma4_runtime.fusion.paths import PATHS

OP = "capped-logits"


def capped(processor: Any, logits: Tensor, metadata: Any) -> Tensor | None:
    """Return what `_get_logits` is to return for logits [T, V or more], in SGLang's buffer if there is one; or None."""
    cap = processor.final_logit_softcapping
    if torch.compiler.is_compiling() or not cap or not switched_on(OP):
        return None
    logits, buffer = logits[..., : processor.vocab_size], metadata.next_token_logits_buffer
    if reason := server_reason() or rows_reason(logits) or _reason(logits, buffer):
        PATHS.took(OP, reason)
        return None
    PATHS.ran(OP, logits)
    return capped_logits(logits, cap, out=buffer)


def _reason(logits: Tensor, buffer: Tensor | None) -> str | None:
    if logits.dtype is torch.float32:
        return "logits that are fp32 already"
    if buffer is None:
        return None
    if buffer.shape != logits.shape or buffer.device != logits.device or buffer.stride(1) != 1:
        return f"a buffer of {list(buffer.shape)} for logits of {list(logits.shape)}"
    return None
