"""Our kernel in the place of the norms of Q, K and V and the rotation in `Gemma4Attention.forward`.

SGLang launches `gemma_qkv_rmsnorm` and a rope kernel, both in place; where a layer reads another layer's keys, also a
fill, for a K of zeros that the rope kernel turns and nobody reads. Here it is one launch, and no K there. The KV pool's
store stays where it is, in the attention layer, since a sliding layer's pool has other locations; `attention-front`
takes both into the attention's own launch.

What is not asked for each time, because it never changes: norms, the kind of rotation, the server's arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gemma4_kernels.row_arguments import DTYPES
from gemma4_runtime.current import switched_on
from gemma4_runtime.fusion import ops
from gemma4_runtime.fusion.eligible import (
    eps_of,
    norms_reason,
    rope_reason,
    rows_reason,
    server_reason,
)
from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.fusion.projection import Projected, project, reads_others_keys
from gemma4_runtime.fusion.tail import wants_unprojected
from gemma4_runtime.optimisations.decode_attention import FRONT, leave_front

OP = "qk-norm-rope"
_ASKED = "_gemma4_triage_qk_norm_rope"


def around_attention_forward(
    original: Callable[..., Any],
    attention: Any,
    positions: Tensor,
    hidden_states: Tensor,
    forward_batch: Any,
    **kwargs: Any,
) -> Tensor:
    """Run around `Gemma4Attention.forward`: positions [T], hidden_states [T, H], to [T, H]."""
    if not switched_on(OP):
        if switched_on(FRONT):
            PATHS.took(FRONT, f"without {OP}")
        return original(attention, positions, hidden_states, forward_batch, **kwargs)
    reason = _layer_reason(attention) or rows_reason(hidden_states)
    reason = reason or _places_reason(attention, positions, hidden_states)
    if reason is None:
        projected = project(attention, hidden_states)
        if (reason := rows_reason(projected.q)) is None:
            PATHS.ran(OP, projected.q)
            table = _table(attention.rotary_emb, projected.q.dtype)
            q, left = leave_front(attention, projected, table, positions, forward_batch)
            if left:
                return _attend(attention, (q, None, None), forward_batch, save=False)
            heads = _heads(attention, projected, table, positions)
            return _attend(attention, heads, forward_batch, save=not attention.is_kv_shared_layer)
    PATHS.took(OP, reason)
    return original(attention, positions, hidden_states, forward_batch, **kwargs)


def _attend(
    attention: Any, heads: tuple[Tensor, Tensor | None, Tensor | None], forward_batch: Any, save: bool
) -> Tensor:
    attended = attention.attn(*heads, forward_batch=forward_batch, save_kv_cache=save)
    rows = attended.flatten(-2, -1) if attended.dim() == 3 else attended
    if wants_unprojected(attention):
        return rows
    output, _ = attention.o_proj(rows)
    return output


def _heads(
    attention: Any, projected: Projected, table: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return q [T, heads, D], and k and v [T, KV heads, D] or None."""
    size = attention.head_dim
    q, k, v = projected
    shared = reads_others_keys(attention)
    q, k, v = ops.qk_norm_rope(
        q,
        None if shared else k,
        None if shared else v,
        attention.q_norm.weight,
        attention.k_norm.weight,
        table,
        positions,
        eps_of(attention.q_norm),
    )
    q = q.unflatten(-1, (attention.num_heads, size))
    if k is None or v is None:
        return q, None, None
    return q, k.unflatten(-1, (attention.num_kv_heads, size)), v.unflatten(-1, (attention.num_kv_heads, size))


def _table(rotary: Any, dtype: torch.dtype) -> Tensor:
    """Return the table as SGLang's own forward leaves it.

    Heads of other sizes than the models' have another kernel there, for which the table is replaced by one of the
    queries' dtype: at the first forward, before a graph has its address.
    """
    if rotary.use_fallback_kernel and rotary.cos_sin_cache.dtype is not dtype:
        rotary.cos_sin_cache = rotary.cos_sin_cache.to(dtype)
    return rotary.cos_sin_cache


def _layer_reason(attention: Any) -> str | None:
    """Asked once for each layer."""
    asked = getattr(attention, _ASKED, None)
    if asked is None:
        norms = attention.q_norm, attention.k_norm, attention.v_norm
        reason = server_reason() or norms_reason(*norms) or rope_reason(attention.rotary_emb, attention.head_dim)
        if reason is None and attention.v_norm.with_scale:
            reason = "a norm of V with a learned weight"
        if reason is None and attention.q_norm.weight.dtype is not attention.k_norm.weight.dtype:
            reason = "norms of Q and K of different dtypes"
        asked = (reason,)
        setattr(attention, _ASKED, asked)
    return asked[0]


def _places_reason(attention: Any, positions: Tensor, hidden_states: Tensor) -> str | None:
    table = attention.rotary_emb.cos_sin_cache
    if table.dtype not in DTYPES or table.device != hidden_states.device:
        return f"a table of angles of {table.dtype} on {table.device}"
    if positions.shape != hidden_states.shape[:1] or positions.dtype not in (torch.int32, torch.int64):
        return f"positions of {positions.dim()} dimensions, {positions.dtype}"
    return None if positions.stride(0) == 1 else "positions that are apart"
