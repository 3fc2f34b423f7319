"""Which ops a decoder layer takes, decided at its first forward: what does not change while it serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemma4_runtime.current import switched_on
from gemma4_runtime.fusion.carried_norm import CarriedNorm
from gemma4_runtime.fusion.eligible import norms_reason, server_reason
from gemma4_runtime.fusion.paths import PATHS

TRIPLE, POST_ATTENTION = "triple-rmsnorm", "post-attention-norms"
ADD, GELU, RESIDUAL_SCALAR = "rmsnorm-add", "gelu-tanh-mul", "rmsnorm-residual-scalar"
CROSS = "cross-layer-norm"
LAYER_OPS = (TRIPLE, POST_ATTENTION, ADD, GELU, RESIDUAL_SCALAR, CROSS)
_PLAN, _NEXT = "_gemma4_triage_plan", "_gemma4_triage_next"


@dataclass(frozen=True)
class LayerPlan:
    """Which ops a layer takes.

    Attributes:
        ops: Their ids.
        next_norm: That of the next layer or of the model, if CROSS is one of them.
        next_attention: Of the next layer, if its norm is that.
    """

    ops: frozenset[str]
    next_norm: CarriedNorm | None
    next_attention: Any = None


def plan_of(layer: Any) -> LayerPlan:
    """Return the plan of a Gemma4DecoderLayer, made at the first call."""
    plan = getattr(layer, _PLAN, None)
    if plan is None:
        plan = _make(layer)
        setattr(layer, _PLAN, plan)
    return plan


def forget_plan(layer: Any) -> None:
    """Decide anew at the next forward: the patches in force have changed."""
    if hasattr(layer, _PLAN):
        delattr(layer, _PLAN)


def set_next_norm(layer: Any, norm: CarriedNorm | None, attention: Any = None) -> None:
    """Tell a layer what comes behind it.

    Args:
        layer: A Gemma4DecoderLayer.
        norm: None if another pipeline rank has it.
        attention: Of the next layer; None behind the last one.
    """
    # In a tuple: a module that is an attribute is a part of the layer.
    setattr(layer, _NEXT, (norm, attention))


def _make(layer: Any) -> LayerPlan:
    wanted = [op for op in LAYER_OPS if switched_on(op) and _concerns(op, layer)]
    next_norm, next_attention = getattr(layer, _NEXT, (None, None))
    ops = set()
    for op in wanted:
        reason = server_reason() or _layer_reason(layer) or norms_reason(*_norms(op, layer, next_norm))
        if reason is None:
            ops.add(op)
        else:
            PATHS.took(op, reason)
    carried = CROSS in ops
    return LayerPlan(frozenset(ops), next_norm if carried else None, next_attention if carried else None)


def _concerns(op: str, layer: Any) -> bool:
    """Does this layer have what the op computes?"""
    if op == TRIPLE:
        return layer.enable_moe_block
    if op == POST_ATTENTION:
        return not layer.enable_moe_block
    if op in (ADD, GELU):
        return layer.has_ple
    return op == CROSS or not layer.enable_moe_block


def _layer_reason(layer: Any) -> str | None:
    if layer.enable_moe_block and layer.has_ple:
        return "a layer with experts and per-layer embeddings"
    if layer.enable_moe_block and layer.router.norm.with_scale:
        return "a router norm with a learned weight"
    return None


def _norms(op: str, layer: Any, next_norm: CarriedNorm | None) -> list[Any]:
    """Return those that the op computes in one launch, which has one eps."""
    if op == TRIPLE:
        return [
            layer.post_attention_layernorm,
            layer.pre_feedforward_layernorm,
            layer.pre_feedforward_layernorm_2,
            layer.router.norm,
        ]
    if op == POST_ATTENTION:
        return [layer.post_attention_layernorm, layer.pre_feedforward_layernorm]
    if op == ADD:
        return [layer.post_feedforward_layernorm]
    if op == GELU:
        return []
    last = layer.post_per_layer_input_norm if layer.has_ple else layer.post_feedforward_layernorm
    if op == RESIDUAL_SCALAR:
        return [last]
    branches = (
        [layer.post_feedforward_layernorm_1, layer.post_feedforward_layernorm_2] if layer.enable_moe_block else []
    )
    return [*branches, last, *([next_norm.norm] if next_norm else [])]
