"""All of a layer behind its attention in one launch, where that was measured faster than its ops one by one.

The output projection is part of it, so the attention ahead leaves its rows as they are; and so is the next layer's
projection, which finds what was computed for it. What the launch takes the place of has to be in force: whoever
switches off one of these ops wants to see that one gone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from gemma4_kernels.cuda_source import unavailable
from gemma4_kernels.layer_tail.kernel import tuned_plans
from gemma4_kernels.layer_tail.launch import layer_tail, readable
from gemma4_kernels.layer_tail.spec import MAX_ROWS, TailPlan, TailWeights
from gemma4_runtime.current import switched_on
from gemma4_runtime.fusion import projection
from gemma4_runtime.fusion.eligible import eps_of, norms_reason, rows_reason, server_reason
from gemma4_runtime.fusion.layer_plan import ADD, CROSS, GELU, POST_ATTENTION, LayerPlan
from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.fusion.small_linear import OP as SMALL
from gemma4_runtime.fusion.small_linear import STREAMED, is_gelu_mlp, plain, watched
from gemma4_runtime.release import MergedColumnParallelLinear, ReplicatedLinear, RowParallelLinear

OP = "layer-tail"
_PARTS = (POST_ATTENTION, ADD, GELU, CROSS)
_ELSEWHERE = ("qk-norm-rope", SMALL, STREAMED)
_UNPROJECTED = "_gemma4_triage_unprojected"
_WANTED, _LEFT = "wanted", "left"


class LayerTail(NamedTuple):
    """What runs behind one layer's attention; projection: the next layer's, if it is to be computed too."""

    layer: Any
    plan: LayerPlan
    weights: TailWeights
    next_attention: Any
    next_projection: Tensor | None
    tail_plan: TailPlan

    def reads(self, attended: Tensor) -> bool:
        """Say whether these rows [T, A], which the attention has left, are what was expected of it."""
        return attended.dim() == 2 and attended.dtype is self.weights.o.dtype and attended.is_contiguous()

    def run(self, attended: Tensor, residual: Tensor, ple: Tensor) -> Tensor:
        """Return the layer's hidden states [T, H], and leave the next layer what was computed for it."""
        norm = self.plan.next_norm
        assert norm is not None
        made = layer_tail(
            attended,
            residual,
            ple,
            self.weights,
            norm.norm.weight,
            self.next_projection,
            eps_of(norm.norm),
            self.tail_plan,
        )
        PATHS.ran(OP, residual)
        norm.carry(made.hidden, made.normed)
        if made.projected is not None:
            projection.carry(self.next_attention, made.normed, made.projected)
        return made.hidden


def tail_of(layer: Any, plan: LayerPlan, hidden: Tensor, ple: Tensor | None) -> LayerTail | None:
    """Return what is to run behind this layer's attention for hidden [T, H], or None where op by op is right.

    More rows than the kernel has, as in a prefill, are not recorded as a path.
    """
    if torch.compiler.is_compiling() or not switched_on(OP) or not layer.has_ple or ple is None:
        return None
    if not 1 <= hidden.shape[0] <= MAX_ROWS:
        return None
    found = _reason(layer, plan, hidden, ple) or _tail(layer, plan, hidden)
    if isinstance(found, str):
        PATHS.took(OP, found)
        return None
    return found


def leave_unprojected(attention: Any) -> None:
    """Ask the next forward of this attention layer for its rows ahead of the output projection."""
    setattr(attention, _UNPROJECTED, _WANTED)


def wants_unprojected(attention: Any) -> bool:
    """Say whether the forward that asks is to leave its rows unprojected, and take note that it does."""
    wanted = getattr(attention, _UNPROJECTED, None) == _WANTED
    if wanted:
        setattr(attention, _UNPROJECTED, _LEFT)
    return wanted


def left_unprojected(attention: Any) -> bool:
    """Say whether the last forward left its rows so; a forward that is not ours projects them all the same."""
    left = getattr(attention, _UNPROJECTED, None) == _LEFT
    setattr(attention, _UNPROJECTED, None)
    return left


def _reason(layer: Any, plan: LayerPlan, hidden: Tensor, ple: Tensor) -> str | None:
    missing = [op for op in _PARTS if op not in plan.ops] + [op for op in _ELSEWHERE if not switched_on(op)]
    if missing or plan.next_norm is None:
        return f"without {', '.join(missing) or 'a norm behind it on this rank'}"
    if reason := server_reason() or rows_reason(hidden) or _layer_reason(layer, plan.next_norm.norm):
        return reason
    linears = layer.self_attn.o_proj, layer.mlp.gate_up_proj, layer.mlp.down_proj, layer.per_layer_input_gate
    if watched(layer.mlp, layer.mlp.act_fn, *linears, layer.per_layer_projection):
        return "a module of the layer that hooks watch"
    if ple.dim() != 2 or ple.dtype is not hidden.dtype or ple.device != hidden.device or ple.stride(1) != 1:
        return "per-layer inputs that are not the hidden states' like"
    return None


def _layer_reason(layer: Any, next_norm: Any) -> str | None:
    """Asked at each forward: LoRA puts other modules in the place of a layer's linear ones."""
    norms = (
        layer.post_attention_layernorm,
        layer.pre_feedforward_layernorm,
        layer.post_feedforward_layernorm,
        layer.post_per_layer_input_norm,
        next_norm,
    )
    if reason := norms_reason(*norms):
        return reason
    if not is_gelu_mlp(layer.mlp):
        return "an MLP that is not Gemma-4's"
    kinds = {
        layer.self_attn.o_proj: RowParallelLinear,
        layer.mlp.gate_up_proj: MergedColumnParallelLinear,
        layer.mlp.down_proj: RowParallelLinear,
        layer.per_layer_input_gate: ReplicatedLinear,
        layer.per_layer_projection: ReplicatedLinear,
    }
    for linear, kind in kinds.items():
        if type(linear) is not kind or not plain(linear):
            return f"a {type(linear).__name__} that is not a plain product"
        if getattr(linear, "tp_size", 1) != 1:
            return "products that several ranks share"
        if type(linear.weight) not in (torch.nn.Parameter, Tensor):
            return f"a weight of the type {type(linear.weight).__name__}"
    return None


def _tail(layer: Any, plan: LayerPlan, hidden: Tensor) -> LayerTail | str:
    weights = TailWeights(
        layer.self_attn.o_proj.weight,
        layer.mlp.gate_up_proj.weight,
        layer.mlp.down_proj.weight,
        layer.per_layer_input_gate.weight,
        layer.per_layer_projection.weight,
        layer.post_attention_layernorm.weight,
        layer.pre_feedforward_layernorm.weight,
        layer.post_feedforward_layernorm.weight,
        layer.post_per_layer_input_norm.weight,
        layer.layer_scalar,
    )
    assert plan.next_norm is not None
    next_norm, following = plan.next_norm.norm.weight, plan.next_attention
    if any(one.dtype is not hidden.dtype or one.device != hidden.device for one in (*weights, next_norm)):
        return "weights of another dtype or device than the hidden states"
    next_projection = None if following is None else projection.weight_of(following, hidden)
    if hidden.is_cuda:
        if reason := unavailable(hidden.device):
            return reason
        sizes = hidden.shape[1], weights.down.shape[1], weights.o.shape[1]
        plans = tuned_plans(torch.cuda.get_device_name(hidden.device), *sizes)
        tail_plan = plans[hidden.shape[0]] if plans else None
        if tail_plan is None:
            return "its ops one by one are as fast, or nobody measured"
        if not readable(hidden, hidden, weights, next_projection):
            return "rows or weights that are not bf16 at multiples of 16 bytes"
    else:
        tail_plan = TailPlan(32, 2, 1, 4)
    return LayerTail(layer, plan, weights, following, next_projection, tail_plan)
