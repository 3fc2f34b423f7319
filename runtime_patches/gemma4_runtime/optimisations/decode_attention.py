"""Our kernel in the place of the two that Triton attention launches for a decode step's queries.

A layer's attention takes 18 us on an H200 at batch 8 whatever the few keys of a window are: eight parts per request at
most, each read by one program step by step, and a second launch that adds them up. Ours cuts the slots into as many
parts as multiprocessors have room for, begins while the kernel ahead still runs, and adds up in the same launch.

With `attention-front` the same launch does what qk-norm-rope and the pool's store do ahead of it as well: the model's
attention hands the projection over as it is, and this backend's next call finds what is left to do beside it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gemma4_kernels.decode_attention.launch import Front, NewKeys, decode_attention, front_reason
from gemma4_kernels.decode_attention.spec import GROUPS, HEAD_DIMS
from gemma4_kernels.tickets import MOST
from gemma4_runtime.current import switched_on
from gemma4_runtime.fusion.eligible import eps_of, on_host_engine, server_reason
from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.fusion.projection import Projected, reads_others_keys
from gemma4_runtime.fusion.small_linear import watched
from gemma4_runtime.release import MHATokenToKVPool, SWAKVPool, get_attn_backend

OP = "decode-attention"
FRONT = "attention-front"
_DTYPES = (torch.bfloat16, torch.float16)
_FRONTS = "_gemma4_triage_fronts"


@dataclass(slots=True)
class Fronts:
    """What the next attention has to do ahead of itself, one for a backend and its copies.

    YOCO's prefill attends through a copy of the backend, whose `decode_attention_fwd` is the first one's.
    """

    left: tuple[int, Front] | None = None
    """The address of the queries that it goes with, and what is left."""


def after_init(result: Any, backend: Any, *_: Any, **__: Any) -> None:
    """Run after `TritonAttnBackend.__init__`, which keeps the function that `forward_decode` calls."""
    # Here: only a server with Triton attention has loaded it.
    from gemma4_runtime.release import TritonAttnBackend

    fronts = Fronts()
    if type(backend) is TritonAttnBackend:
        setattr(backend, _FRONTS, fronts)
    ours = functools.partial(attend, fronts, backend.decode_attention_fwd)
    backend.decode_attention_fwd = torch.compiler.disable(ours)


def leave_front(
    attention: Any, projected: Projected, table: Tensor, positions: Tensor, forward_batch: Any
) -> tuple[Tensor, bool]:
    """Leave the norms, the rotation and the store of one layer's decode step to the attention behind them.

    Args:
        attention: The model's attention layer, whose norms and rotation qk-norm-rope takes.
        projected: Its queries, keys and values of [T, heads * D] each.
        table: [P, D] cosines and sines.
        positions: int [T].
        forward_batch: SGLang's; its mode, and where new tokens go.

    Returns:
        (queries [T, heads, D] as they are, whether it is left). Not left means that nothing has changed.
    """
    q = projected.q.unflatten(-1, (attention.num_heads, attention.head_dim))
    if not switched_on(FRONT) or not forward_batch.forward_mode.is_decode() or torch.compiler.is_compiling():
        return q, False
    backend = get_attn_backend()
    found = _front_reason(attention, q, backend, forward_batch) or _new_keys(
        attention, projected, backend, forward_batch
    )
    if isinstance(found, str):
        PATHS.took(FRONT, found)
        return q, False
    front = Front(attention.q_norm.weight, table, positions, eps_of(attention.q_norm), found)
    pool, layer = backend.token_to_kv_pool, attention.attn.layer_id
    if q.is_cuda and (reason := front_reason(q, pool.get_key_buffer(layer), pool.get_value_buffer(layer), front)):
        PATHS.took(FRONT, reason)
        return q, False
    getattr(backend, _FRONTS).left = q.data_ptr(), front
    return q, True


def _front_reason(attention: Any, q: Tensor, backend: Any, forward_batch: Any) -> str | None:
    missing = [op for op in ("qk-norm-rope", OP) if not switched_on(op)]
    if missing:
        return f"without {', '.join(missing)}"
    if not hasattr(backend, _FRONTS):
        return f"attention by {type(backend).__name__}"
    if forward_batch.spec_info is not None:
        return "speculative decoding"
    layer = attention.attn
    if watched(layer):
        return "an attention layer that hooks watch"
    if layer.logit_cap > 0 or layer.xai_temperature_len > 0 or layer.k_scale is not None or layer.v_scale is not None:
        return "scores that are not scaled alone, or keys and values with scales"
    pool = backend.token_to_kv_pool
    if type(pool) not in (MHATokenToKVPool, SWAKVPool):
        return f"keys and values in a {type(pool).__name__}"
    keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
    on_cpu = on_host_engine() and not q.is_cuda
    return server_reason() or (_heads_reason if on_cpu else _tensors_reason)(q, keys, values)


def _new_keys(attention: Any, projected: Projected, backend: Any, forward_batch: Any) -> NewKeys | str | None:
    """Return what the pool's own store would write, and where; why that is not known; None in a layer without keys."""
    if reads_others_keys(attention) or projected.k is None or projected.v is None:
        return None
    pool, places = backend.token_to_kv_pool, forward_batch.out_cache_loc
    if type(pool) is SWAKVPool and pool.layers_mapping[attention.attn.layer_id][1]:
        places = backend.forward_metadata.swa_out_cache_loc
    if places is None or len(places) != len(projected.q):
        return "write locations that are not the step's"
    heads = attention.num_kv_heads, attention.head_dim
    keys, values = projected.k.unflatten(-1, heads), projected.v.unflatten(-1, heads)
    return NewKeys(keys, values, attention.k_norm.weight, places)


def attend(
    fronts: Fronts,
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
    left, fronts.left = fronts.left, None
    if left is not None and left[0] == q.data_ptr():
        # What could speak against it was asked before it was left. One of other queries is of a forward that failed.
        front = left[1]
        decode_attention(q, k_buffer, v_buffer, kv_indptr, kv_indices, sm_scale, front=front, out=o)
        PATHS.ran(OP, q)
        PATHS.ran(FRONT, q)
        return
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
    if q.dtype not in _DTYPES:
        return f"queries of {q.dtype}, keys of {keys.dtype}, values of {values.dtype}"
    return _heads_reason(q, keys, values)


def _heads_reason(q: Tensor, keys: Tensor, values: Tensor) -> str | None:
    if not q.dtype is keys.dtype is values.dtype:
        return f"queries of {q.dtype}, keys of {keys.dtype}, values of {values.dtype}"
    if keys.dim() != 3 or keys.shape != values.shape or keys.shape[2] != q.shape[2] or q.shape[2] not in HEAD_DIMS:
        return f"heads of {q.shape[2]} elements, keys of {list(keys.shape)}, values of {list(values.shape)}"
    if q.shape[1] % keys.shape[1] or q.shape[1] // keys.shape[1] not in GROUPS:
        return f"{q.shape[1]} heads that read {keys.shape[1]} key heads"
    if not q.stride(2) == keys.stride(2) == values.stride(2) == 1:
        return "heads whose elements lie apart"
    return "more requests than the kernel counts" if q.shape[0] * keys.shape[1] > MOST else None
