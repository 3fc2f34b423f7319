"""Gemma4DecoderLayer.forward in stages, each of which takes our kernel or SGLang's own lines.

| stage                        | SGLang 0.5.13.post1              | op                                        |
|------------------------------|----------------------------------|-------------------------------------------|
| after attention, dense       | norm; in-place add and norm      | post-attention-norms                      |
| after attention, experts     | norm; in-place add and norm; two | triple-rmsnorm                            |
| after the MLP, with PLE      | norm; add                        | rmsnorm-add                               |
| PLE gate                     | gelu; multiply                   | gelu-tanh-mul                             |
| end, without experts         | norm; add; multiply (one without | cross-layer-norm, with the norm after it; |
|                              | PLE); then the next layer's norm | or rmsnorm-residual-scalar without        |
| end, experts                 | one; then the next layer's norm  | cross-layer-norm                          |

With small-m-linear a decode step's gates, of the MLP and of PLE, are part of the product ahead of them. With layer-tail
all that stands behind the attention of a layer with PLE is one launch, where its table has it faster. With
dense-beside-experts the products of a layer with experts are four launches instead of six, likewise.

With post-attention-norms or triple-rmsnorm a layer's input is left as it was; SGLang adds into it, which spoils hidden
states captured there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gemma4_runtime.fusion import ops
from gemma4_runtime.fusion.beside_experts import beside_plan, dense_beside_experts
from gemma4_runtime.fusion.eligible import alike, eps_of, rows_reason
from gemma4_runtime.fusion.layer_plan import ADD, CROSS, GELU, POST_ATTENTION, RESIDUAL_SCALAR, TRIPLE, plan_of
from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.fusion.small_linear import gated_mlp_input, gelu_mul
from gemma4_runtime.fusion.tail import leave_unprojected, left_unprojected, tail_of
from gemma4_runtime.release import gemma_dual_rmsnorm_residual_scalar, gemma_rmsnorm_residual_scalar

_UNLIKE = "tensors that are not alike"


def around_layer_forward(
    original: Callable[..., Any],
    layer: Any,
    positions: Tensor,
    hidden_states: Tensor,
    per_layer_input: Tensor | None,
    forward_batch: Any,
    **kwargs: Any,
) -> Any:
    """Run around `Gemma4DecoderLayer.forward`: hidden_states [T, H] to ([T, H], None)."""
    plan = plan_of(layer)
    if not plan.ops or (reason := rows_reason(hidden_states)):
        for op in plan.ops:
            PATHS.took(op, reason)
        return original(layer, positions, hidden_states, per_layer_input, forward_batch, **kwargs)
    normed = layer.input_layernorm(hidden_states)
    tail = tail_of(layer, plan, hidden_states, per_layer_input)
    if tail is not None:
        leave_unprojected(layer.self_attn)
    attention = layer.self_attn(positions=positions, hidden_states=normed, forward_batch=forward_batch)
    if tail is not None and per_layer_input is not None and left_unprojected(layer.self_attn):
        if tail.reads(attention):
            return tail.run(attention, hidden_states, per_layer_input), None
        attention, _ = layer.self_attn.o_proj(attention)
    if layer.enable_moe_block:
        return _experts(layer, plan, attention, hidden_states), None
    residual, mlp_input = _after_attention(layer, plan, attention, hidden_states)
    mlp = _mlp(layer, mlp_input)
    if not layer.has_ple:
        return _end(layer, plan, mlp, layer.post_feedforward_layernorm, residual), None
    hidden = _after_mlp(layer, plan, mlp, residual)
    if per_layer_input is None:
        return hidden * layer.layer_scalar, None
    projected, _ = layer.per_layer_projection(_gated(layer, plan, hidden, per_layer_input))
    return _end(layer, plan, projected, layer.post_per_layer_input_norm, hidden), None


def _takes(plan: Any, op: str, rows: Tensor, first: Tensor) -> bool:
    if op not in plan.ops:
        return False
    fused = alike(rows, first)
    if fused:
        PATHS.ran(op, rows)
    else:
        PATHS.took(op, _UNLIKE)
    return fused


def _after_attention(layer: Any, plan: Any, attention: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
    norm, pre = layer.post_attention_layernorm, layer.pre_feedforward_layernorm
    if _takes(plan, POST_ATTENTION, attention, residual):
        return ops.post_attention_norms(attention, norm.weight, residual, pre.weight, eps_of(norm))
    mlp_input, residual = pre(norm(attention), residual)
    return residual, mlp_input


def _experts(layer: Any, plan: Any, attention: Tensor, residual: Tensor) -> Tensor:
    norm, pre, pre_experts = (
        layer.post_attention_layernorm,
        layer.pre_feedforward_layernorm,
        layer.pre_feedforward_layernorm_2,
    )
    if _takes(plan, TRIPLE, attention, residual):
        weights = layer.router.scale, pre.weight, pre_experts.weight
        # Its first launch streams nothing, so that a norm which lets it in early would only take room by it.
        beside = beside_plan(layer, attention)
        made = ops.triple_rmsnorm(attention, norm.weight, residual, *weights, eps_of(norm), lets_in=beside is None)
        residual, router_input, mlp_input, experts_input = made
        if beside is not None:
            made_by = dense_beside_experts(layer, beside, mlp_input, router_input, experts_input)
            return _end_of_experts(layer, plan, *made_by, residual)
        dense = _mlp(layer, mlp_input)
        # The router's own forward would norm again, with the scale that it folded once.
        logits, _ = layer.router.proj(router_input)
    else:
        mlp_input, residual = pre(norm(attention), residual)
        dense = _mlp(layer, mlp_input)
        logits, experts_input = layer.router(residual), pre_experts(residual)
    return _end_of_experts(layer, plan, dense, layer.moe(experts_input, logits), residual)


def _after_mlp(layer: Any, plan: Any, mlp: Tensor, residual: Tensor) -> Tensor:
    norm = layer.post_feedforward_layernorm
    if _takes(plan, ADD, mlp, residual):
        return ops.rmsnorm_add(mlp, norm.weight, residual, eps_of(norm))
    return norm(mlp) + residual


def _mlp(layer: Any, rows: Tensor) -> Tensor:
    gated = gated_mlp_input(layer.mlp, rows)
    if gated is None:
        return layer.mlp(rows)
    made, _ = layer.mlp.down_proj(gated)
    return made


def _gated(layer: Any, plan: Any, hidden: Tensor, per_layer_input: Tensor) -> Tensor:
    if GELU in plan.ops:
        gated = gelu_mul(layer.per_layer_input_gate, hidden, per_layer_input)
        if gated is not None:
            PATHS.ran(GELU, hidden)
            return gated
    gate, _ = layer.per_layer_input_gate(hidden)
    if _takes(plan, GELU, per_layer_input, gate):
        return ops.gelu_tanh_mul(gate, per_layer_input)
    return torch.nn.functional.gelu(gate, approximate="tanh") * per_layer_input


def _end(layer: Any, plan: Any, x: Tensor, norm: Any, residual: Tensor) -> Tensor:
    """(rms(x) * weight + residual) * scalar."""
    if plan.next_norm is not None and _carries(plan, x, residual):
        made = ops.cross_layer_norm(
            x, norm.weight, residual, layer.layer_scalar, plan.next_norm.norm.weight, eps_of(norm)
        )
        return _carry(plan, made)
    if _takes(plan, RESIDUAL_SCALAR, x, residual):
        return ops.rmsnorm_residual_scalar(x, norm.weight, residual, layer.layer_scalar, eps_of(norm))
    if layer.has_ple or not x.is_cuda:
        return (norm(x) + residual) * layer.layer_scalar
    return gemma_rmsnorm_residual_scalar(x, norm.weight.data, residual, layer.layer_scalar, eps_of(norm))


def _end_of_experts(layer: Any, plan: Any, dense: Tensor, experts: Tensor, residual: Tensor) -> Tensor:
    """(rms(rms(dense) * w1 + rms(experts) * w2) * w3 + residual) * scalar."""
    norms = layer.post_feedforward_layernorm_1, layer.post_feedforward_layernorm_2, layer.post_feedforward_layernorm
    first, second, third = norms
    if plan.next_norm is not None and alike(experts, residual) and _carries(plan, dense, residual):
        made = ops.moe_cross_layer_norm(
            dense,
            first.weight,
            experts,
            second.weight,
            third.weight,
            residual,
            layer.layer_scalar,
            plan.next_norm.norm.weight,
            eps_of(third),
        )
        return _carry(plan, made)
    if not dense.is_cuda:
        return (third(first(dense) + second(experts)) + residual) * layer.layer_scalar
    weights = first.weight.data, experts, second.weight.data, third.weight.data
    return gemma_dual_rmsnorm_residual_scalar(
        dense, *weights, residual, layer.layer_scalar, *(eps_of(norm) for norm in norms)
    )


def _carries(plan: Any, x: Tensor, residual: Tensor) -> bool:
    # A trace follows no carried norm. Offloaded weights of the next layer are not here yet.
    if torch.compiler.is_compiling():
        return False
    if plan.next_norm.norm.weight.device != x.device:
        PATHS.took(CROSS, "the next layer's weights are elsewhere")
        return False
    return _takes(plan, CROSS, x, residual)


def _carry(plan: Any, made: Any) -> Tensor:
    plan.next_norm.carry(made.hidden, made.normed)
    return made.hidden
