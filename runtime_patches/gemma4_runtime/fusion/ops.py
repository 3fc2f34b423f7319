"""Our kernels as the model calls them: launched directly, or as torch custom ops where torch.compile traces.

SGLang's piecewise CUDA graphs trace the model. A launch reads addresses, which a trace does not have, so there each op
is opaque to it. Outside a trace a custom op would only cost the host time.

All return new tensors and only read what they are given. What is traced counts itself where it runs.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from gemma4_kernels.cross_layer_norm import launch as cross
from gemma4_kernels.gelu_tanh_mul import launch as gelu
from gemma4_kernels.ple_front_end import launch as front_end
from gemma4_kernels.post_attention_norms import launch as post_attention
from gemma4_kernels.qk_norm_rope import launch as norm_rope
from gemma4_kernels.rmsnorm_add import launch as add
from gemma4_kernels.rmsnorm_residual_scalar import launch as residual_scalar
from gemma4_kernels.routing import launch as router
from gemma4_kernels.triple_rmsnorm import launch as triple
from gemma4_runtime.fusion import small_linear
from gemma4_runtime.fusion.paths import PATHS


def routing(logits: Tensor, per_expert_scale: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """(weights [T, k] fp32, ids [T, k] int32) of logits [T, E]."""
    if torch.compiler.is_compiling():
        return _routing(logits, per_expert_scale, top_k)
    return router.routing(logits, per_expert_scale, top_k)


def triple_rmsnorm(
    attention: Tensor,
    weight: Tensor,
    residual: Tensor,
    scale: Tensor,
    dense: Tensor,
    experts: Tensor,
    eps: float,
    lets_in: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(residual', router input, dense input, experts input), [T, H] each."""
    if torch.compiler.is_compiling():
        return _triple_rmsnorm(attention, weight, residual, scale, dense, experts, eps)
    return triple.triple_rmsnorm(attention, weight, residual, scale, dense, experts, eps, lets_in=lets_in)


def post_attention_norms(
    attention: Tensor, weight: Tensor, residual: Tensor, next_weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """(residual', its norm), [T, H] each."""
    if torch.compiler.is_compiling():
        return _post_attention_norms(attention, weight, residual, next_weight, eps)
    return post_attention.post_attention_norms(attention, weight, residual, next_weight, eps)


def rmsnorm_add(x: Tensor, weight: Tensor, residual: Tensor, eps: float) -> Tensor:
    """rms(x) * weight + residual, [T, H]."""
    if torch.compiler.is_compiling():
        return _rmsnorm_add(x, weight, residual, eps)
    return add.rmsnorm_add(x, weight, residual, eps)


def gelu_tanh_mul(gate: Tensor, ple: Tensor) -> Tensor:
    """gelu_tanh(gate) * ple, [T, P]."""
    return _gelu_tanh_mul(gate, ple) if torch.compiler.is_compiling() else gelu.gelu_tanh_mul(gate, ple)


def rmsnorm_residual_scalar(x: Tensor, weight: Tensor, residual: Tensor, scalar: Tensor, eps: float) -> Tensor:
    """(rms(x) * weight + residual) * scalar, [T, H]."""
    if torch.compiler.is_compiling():
        return _rmsnorm_residual_scalar(x, weight, residual, scalar, eps)
    return residual_scalar.rmsnorm_residual_scalar(x, weight, residual, scalar, eps)


def ple_front_end(projection: Tensor, weight: Tensor, ple: Tensor | None, hidden_size: int, eps: float) -> Tensor:
    """(rms(projection * H^-0.5) * weight + ple) * 2^-0.5, [T, L, P]."""
    if torch.compiler.is_compiling():
        return _ple_front_end(projection, weight, ple, hidden_size, eps)
    return front_end.ple_front_end(projection, weight, ple, hidden_size, eps)


def qk_norm_rope(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    q_weight: Tensor,
    k_weight: Tensor,
    cos_sin_cache: Tensor,
    positions: Tensor,
    eps: float,
) -> norm_rope.Roped:
    """(q', k', v'), [T, heads * D] each; k' and v' are None without k and v."""
    if torch.compiler.is_compiling():
        made = _qk_norm_rope(q, k, v, q_weight, k_weight, cos_sin_cache, positions, eps)
        return norm_rope.Roped(*made) if k is not None else norm_rope.Roped(made[0], None, None)
    return norm_rope.qk_norm_rope(q, k, v, q_weight, k_weight, cos_sin_cache, positions, eps)


def q_only_projection(x: Tensor, weight: Tensor, bias: Tensor | None, rows: int) -> Tensor:
    """Multiply x [T, H] by the first `rows` rows of weight [N, H], and add as much of bias [N], to [T, rows]."""
    if torch.compiler.is_compiling():
        return _q_only_projection(x, weight, bias, rows)
    return _first_rows(x, weight, bias, rows)


# Carried norms are not followed through a trace, so these two need no custom op.
cross_layer_norm = cross.cross_layer_norm
moe_cross_layer_norm = cross.moe_cross_layer_norm


@torch.library.custom_op("gemma4_triage::routing", mutates_args=())
def _routing(logits: Tensor, per_expert_scale: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    PATHS.ran("routing", logits)
    return router.routing(logits, per_expert_scale, top_k)


@_routing.register_fake
def _(logits: Tensor, per_expert_scale: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    shape = logits.shape[0], top_k
    return logits.new_empty(shape, dtype=torch.float32), logits.new_empty(shape, dtype=torch.int32)


@torch.library.custom_op("gemma4_triage::triple_rmsnorm", mutates_args=())
def _triple_rmsnorm(
    attention: Tensor, weight: Tensor, residual: Tensor, scale: Tensor, dense: Tensor, experts: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    PATHS.ran("triple-rmsnorm", attention)
    made = triple.triple_rmsnorm(attention, weight, residual, scale, dense, experts, eps)
    return made.residual, made.router, made.dense, made.experts


@_triple_rmsnorm.register_fake
def _(
    attention: Tensor, weight: Tensor, residual: Tensor, scale: Tensor, dense: Tensor, experts: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _new(attention), _new(attention), _new(attention), _new(attention)


@torch.library.custom_op("gemma4_triage::post_attention_norms", mutates_args=())
def _post_attention_norms(
    attention: Tensor, weight: Tensor, residual: Tensor, next_weight: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    PATHS.ran("post-attention-norms", attention)
    return post_attention.post_attention_norms(attention, weight, residual, next_weight, eps)


@_post_attention_norms.register_fake
def _(attention: Tensor, weight: Tensor, residual: Tensor, next_weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return _new(attention), _new(attention)


@torch.library.custom_op("gemma4_triage::rmsnorm_add", mutates_args=())
def _rmsnorm_add(x: Tensor, weight: Tensor, residual: Tensor, eps: float) -> Tensor:
    PATHS.ran("rmsnorm-add", x)
    return add.rmsnorm_add(x, weight, residual, eps)


@_rmsnorm_add.register_fake
def _(x: Tensor, weight: Tensor, residual: Tensor, eps: float) -> Tensor:
    return _new(x)


@torch.library.custom_op("gemma4_triage::gelu_tanh_mul", mutates_args=())
def _gelu_tanh_mul(gate: Tensor, ple: Tensor) -> Tensor:
    PATHS.ran("gelu-tanh-mul", gate)
    return gelu.gelu_tanh_mul(gate, ple)


@_gelu_tanh_mul.register_fake
def _(gate: Tensor, ple: Tensor) -> Tensor:
    return _new(gate)


@torch.library.custom_op("gemma4_triage::rmsnorm_residual_scalar", mutates_args=())
def _rmsnorm_residual_scalar(x: Tensor, weight: Tensor, residual: Tensor, scalar: Tensor, eps: float) -> Tensor:
    PATHS.ran("rmsnorm-residual-scalar", x)
    return residual_scalar.rmsnorm_residual_scalar(x, weight, residual, scalar, eps)


@_rmsnorm_residual_scalar.register_fake
def _(x: Tensor, weight: Tensor, residual: Tensor, scalar: Tensor, eps: float) -> Tensor:
    return _new(x)


@torch.library.custom_op("gemma4_triage::ple_front_end", mutates_args=())
def _ple_front_end(projection: Tensor, weight: Tensor, ple: Tensor | None, hidden_size: int, eps: float) -> Tensor:
    PATHS.ran("ple-front-end", projection)
    return front_end.ple_front_end(projection, weight, ple, hidden_size, eps)


@_ple_front_end.register_fake
def _(projection: Tensor, weight: Tensor, ple: Tensor | None, hidden_size: int, eps: float) -> Tensor:
    return _new(projection)


# A custom op cannot return an optional tensor.
@torch.library.custom_op("gemma4_triage::qk_norm_rope", mutates_args=())
def _qk_norm_rope(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    q_weight: Tensor,
    k_weight: Tensor,
    cos_sin_cache: Tensor,
    positions: Tensor,
    eps: float,
) -> list[Tensor]:
    PATHS.ran("qk-norm-rope", q)
    made = norm_rope.qk_norm_rope(q, k, v, q_weight, k_weight, cos_sin_cache, positions, eps)
    return [one for one in made if one is not None]


@_qk_norm_rope.register_fake
def _(
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    q_weight: Tensor,
    k_weight: Tensor,
    cos_sin_cache: Tensor,
    positions: Tensor,
    eps: float,
) -> list[Tensor]:
    return [_new(one) for one in (q, k, v) if one is not None]


# Opaque to a trace only so that it counts itself where it runs.
@torch.library.custom_op("gemma4_triage::q_only_projection", mutates_args=())
def _q_only_projection(x: Tensor, weight: Tensor, bias: Tensor | None, rows: int) -> Tensor:
    PATHS.took("q-only-projection")
    return _first_rows(x, weight, bias, rows)


@_q_only_projection.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None, rows: int) -> Tensor:
    return x.new_empty((x.shape[0], rows))


def _first_rows(x: Tensor, weight: Tensor, bias: Tensor | None, rows: int) -> Tensor:
    if bias is None and (made := small_linear.product(x, weight[:rows])) is not None:
        return made
    return linear(x, weight[:rows], None if bias is None else bias[:rows])


def _new(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=like.dtype, device=like.device)
