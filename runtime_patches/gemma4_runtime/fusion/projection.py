"""The projection ahead of Gemma-4's attention: of queries alone in layers that read another layer's keys.

There the release multiplies by all of `qkv_proj.weight` and throws K and V away. The queries' rows come first in it, of
a tensor-parallel rank's shard too (`QKVParallelLinear._get_shard_offset_mapping`), so a view of them is all that is
needed: nothing is copied, and updated weights count at once. Both forwards come here, SGLang's own by an edit of the
two lines, and ours of `qk-norm-rope`.

What it saves, 2 * hidden size * rows of K and V in each layer that shares, of the published sizes:

| model | rows of K and V, sliding and full, of all | layers that share | FLOPs per token | bf16 weights per step |
|-------|-------------------------------------------|-------------------|-----------------|-----------------------|
| E2B   | 512 of 2560, 1024 of 5120                 | 16 and 4          | 37.7 million    | 37.7 MB               |
| E4B   | 1024 of 3072, 2048 of 6144                | 15 and 3          | 110.1 million   | 110.1 MB              |

A GEMM of other dimensions may sum in another order, so logits are the release's within round-off, not to the bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gemma4_runtime.current import switched_on
from gemma4_runtime.fusion import ops
from gemma4_runtime.fusion.eligible import rows_reason, server_reason
from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.release import QKVParallelLinear, UnquantizedLinearMethod

OP = "q-only-projection"
_ASKED, _CARRIED = "_gemma4_triage_q_only", "_gemma4_triage_carried"


class Projected(NamedTuple):
    """q [T, q_size]; k and v [T, kv_size], or None where nobody reads them."""

    q: Tensor
    k: Tensor | None
    v: Tensor | None


def project(attention: Any, hidden_states: Tensor) -> Projected:
    """Say what `Gemma4Attention.forward` begins with. hidden_states: [T, H]."""
    projection = attention.qkv_proj
    carried = getattr(attention, _CARRIED, None)
    if carried is not None:
        setattr(attention, _CARRIED, None)
        if carried[0] is hidden_states:
            return _parts(attention, carried[1])
    if reads_others_keys(attention) and switched_on(OP):
        reason = _projection_reason(attention) or rows_reason(hidden_states)
        if reason is None:
            PATHS.took(OP)
            q = ops.q_only_projection(hidden_states, projection.weight, projection.bias, attention.q_size)
            return Projected(q, None, None)
        PATHS.took(OP, reason)
    qkv, _ = projection(hidden_states)
    return _parts(attention, qkv)


def carry(attention: Any, hidden_states: Tensor, projected: Tensor) -> None:
    """Leave an attention layer the projection of hidden_states [T, H], by `weight_of`, until it is next asked for one.

    It is the answer if that very tensor is asked for, as with a carried norm.
    """
    setattr(attention, _CARRIED, (hidden_states, projected))


def weight_of(attention: Any, hidden_states: Tensor) -> Tensor | None:
    """Return the weight [N, H] that `project` multiplies by; None if it is quantised, watched or has a bias."""
    projection = attention.qkv_proj
    weight = getattr(projection, "weight", None)
    if _projection_reason(attention) or projection.bias is not None or weight is None:
        return None
    if projection._forward_hooks or projection._forward_pre_hooks:
        return None
    if weight.dtype is not hidden_states.dtype or weight.device != hidden_states.device or weight.stride(1) != 1:
        return None
    return weight[: attention.q_size] if reads_others_keys(attention) and switched_on(OP) else weight


def _parts(attention: Any, projected: Tensor) -> Projected:
    if projected.shape[-1] == attention.q_size:
        PATHS.took(OP)
        return Projected(projected, None, None)
    return Projected(*projected.split([attention.q_size, attention.kv_size, attention.kv_size], dim=-1))


def reads_others_keys(attention: Any) -> bool:
    """Say whether K and V of this layer go nowhere. A draft learns after it was made that it reads the target's."""
    return attention.is_kv_shared_layer and attention.kv_shared_layer_index is not None


def _projection_reason(attention: Any) -> str | None:
    """Asked once for each projection: LoRA puts another one in its place."""
    projection = attention.qkv_proj
    asked = getattr(projection, _ASKED, None)
    if asked is None:
        asked = (server_reason() or _layout_reason(projection, attention.q_size + 2 * attention.kv_size),)
        setattr(projection, _ASKED, asked)
    return asked[0]


def _layout_reason(projection: Any, rows: int) -> str | None:
    """Say why its weight is not that of a plain [rows, H] product, queries first; None if it is."""
    if type(projection) is not QKVParallelLinear:
        return f"a projection of the type {type(projection).__name__}"
    if type(projection.quant_method) is not UnquantizedLinearMethod:
        return f"a projection quantised by {type(projection.quant_method).__name__}"
    weight: Any = projection.weight
    if type(weight) not in (torch.nn.Parameter, Tensor):
        # A quantiser of tensors, as torchao's, leaves the method as it was.
        return f"a projection's weight of the type {type(weight).__name__}"
    if getattr(projection, "use_intel_amx_backend", False):
        return "a projection's weight that is packed for AMX"
    if projection.skip_bias_add:
        return "a projection that leaves its bias to others"
    return None if len(weight) == rows else f"a projection of {len(weight)} rows, for {rows} of Q, K and V"
