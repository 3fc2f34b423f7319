"""Our kernel in the place of the two that Triton attention launches for a decode step's queries.

A layer's attention takes 18 us on an H200 at batch 8 whatever the few keys of a window are: eight parts per request at
most, each read by one program step by step, and a second launch that adds them up. Ours cuts the slots into as many
parts as multiprocessors have room for, begins while the kernel ahead still runs, and adds up in the same launch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gemma4_kernels.decode_attention.launch import decode_attention
from gemma4_kernels.decode_attention.spec import GROUPS, HEAD_DIMS
from gemma4_kernels.tickets import MOST
from gemma4_runtime.current import switched_on
from gemma4_runtime.fusion.eligible import server_reason
from gemma4_runtime.fusion.paths import PATHS

OP = "decode-attention"
_DTYPES = (torch.bfloat16, torch.float16)


def after_init(result: Any, backend: Any, *_: Any, **__: Any) -> None:
    """Run after `TritonAttnBackend.__init__`, which keeps the function that `forward_decode` calls."""
    ours = functools.partial(attend, backend.decode_attention_fwd)
    backend.decode_attention_fwd = torch.compiler.disable(ours)


def attend(
    original: Callable[..., None],
    q: Tensor,
    k_buffer: Tensor,
    v_buffer: Tensor,
    o: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    attn_logits: Tensor,
    attn_lse: Tensor,
    num_kv_splits: Tensor,
    max_kv_splits: int,
    sm_scale: float,
    k_scale: float,
    v_scale: float,
    logit_cap: float = 0.0,
    sinks: Tensor | None = None,
    xai_temperature_len: int = -1,
    has_mla: bool = False,
    use_pdl: bool = False,
) -> None:
    """Attend in the place of `decode_attention_fwd`: writes o [R, H, D]."""
    if switched_on(OP):
        plain = not (logit_cap > 0 or sinks is not None or xai_temperature_len > 0 or has_mla)
        reason = "scores that are not scaled alone" if not plain else None
        if reason is None and (k_scale, v_scale) != (1.0, 1.0):
            reason = "keys and values with scales"
        if (reason := reason or server_reason() or _tensors_reason(q, k_buffer, v_buffer)) is None:
            decode_attention(q, k_buffer, v_buffer, kv_indptr, kv_indices, sm_scale, out=o)
            PATHS.took(OP)
            return
        PATHS.took(OP, reason)
    original(
        q,
        k_buffer,
        v_buffer,
        o,
        kv_indptr,
        kv_indices,
        attn_logits,
        attn_lse,
        num_kv_splits,
        max_kv_splits,
        sm_scale,
        k_scale,
        v_scale,
        logit_cap=logit_cap,
        sinks=sinks,
        xai_temperature_len=xai_temperature_len,
        has_mla=has_mla,
        use_pdl=use_pdl,
    )


def _tensors_reason(q: Tensor, keys: Tensor, values: Tensor) -> str | None:
    """Say why the kernel does not take these; None if it does."""
    if not q.is_cuda or torch.version.hip is not None:
        return f"queries on {'ROCm' if q.is_cuda else q.device.type}"
    if not q.dtype is keys.dtype is values.dtype or q.dtype not in _DTYPES:
        return f"queries of {q.dtype}, keys of {keys.dtype}, values of {values.dtype}"
    if keys.dim() != 3 or keys.shape != values.shape or keys.shape[2] != q.shape[2] or q.shape[2] not in HEAD_DIMS:
        return f"heads of {q.shape[2]} elements, keys of {list(keys.shape)}, values of {list(values.shape)}"
    if q.shape[1] % keys.shape[1] or q.shape[1] // keys.shape[1] not in GROUPS:
        return f"{q.shape[1]} heads that read {keys.shape[1]} key heads"
    if not q.stride(2) == keys.stride(2) == values.stride(2) == 1:
        return "heads whose elements lie apart"
    return "more requests than the kernel counts" if q.shape[0] * keys.shape[1] > MOST else None
