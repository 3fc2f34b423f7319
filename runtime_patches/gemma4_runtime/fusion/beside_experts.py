"""A layer's dense MLP beside its experts, where that was measured faster than its ops one by one.

The router's logits are computed beside the dense gate, and the dense down product beside the experts' gates. In between
SGLang's own lines choose the experts, so that whoever counts or records choices goes on to see them. What the launches
take the place of has to be in force: whoever switches off one of these ops wants to see that one gone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gemma4_kernels.beside_experts.launch import experts_beside_down, gate_beside_router
from gemma4_kernels.beside_experts.spec import MAX_ROWS, Plan
from gemma4_kernels.beside_experts.tuned import Size, tuned_plans
from gemma4_kernels.routed_experts.spec import MAX_PAIRS
from gemma4_runtime.current import switched_on
from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.fusion.plain_experts import choice_reason, experts_reason
from gemma4_runtime.fusion.small_linear import OP as SMALL
from gemma4_runtime.fusion.small_linear import is_gelu_mlp, plain, watched
from gemma4_runtime.release import FusedMoE, MergedColumnParallelLinear, ReplicatedLinear, RowParallelLinear

OP = "dense-beside-experts"
_PARTS = ("routing", SMALL, "routed-experts")


def beside_plan(layer: Any, x: Tensor) -> Plan | None:
    """Return how a layer's dense MLP and experts are to run beside each other for rows like x [M, H]; None if not.

    More rows than the kernels have, as in a prefill, are not recorded as a path.
    """
    if torch.compiler.is_compiling() or not switched_on(OP) or not 1 <= x.shape[0] <= MAX_ROWS:
        return None
    plan = _plan_or_reason(layer, x)
    if isinstance(plan, str):
        PATHS.took(OP, plan)
        return None
    return plan


def dense_beside_experts(
    layer: Any, plan: Plan, dense_x: Tensor, router_x: Tensor, experts_x: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what dense MLP and experts of a layer make of their inputs [M, H]."""
    mlp, experts = layer.mlp, layer.moe.experts
    gated, logits = gate_beside_router(dense_x, router_x, mlp.gate_up_proj.weight, layer.router.proj.weight, plan)
    chosen = layer.moe.topk(experts_x, logits)
    if reason := choice_reason(chosen):
        # It is known only now; what has been computed stays right.
        PATHS.took(OP, reason)
        dense, _ = mlp.down_proj(gated)
        return dense, experts(experts_x, chosen).view(experts_x.shape)
    PATHS.ran(OP, dense_x)
    of_experts = experts.w13_weight, experts.w2_weight, chosen.topk_weights, chosen.topk_ids
    made = experts_beside_down(experts_x, *of_experts, gated, mlp.down_proj.weight, plan)
    return made.dense, made.experts


def _plan_or_reason(layer: Any, x: Tensor) -> Plan | str:
    """Return the plan of 1 to MAX_ROWS rows, or why a layer has to be taken op by op."""
    if missing := [op for op in _PARTS if not switched_on(op)]:
        return f"without {', '.join(missing)}"
    experts = layer.moe.experts
    # LoRA puts another module in the place of the experts, as of linear layers.
    if type(experts) is not FusedMoE:
        return f"a {type(experts).__name__} that is not SGLang's plain experts"
    if reason := experts_reason(experts, x) or _layer_reason(layer, x):
        return reason
    count, hidden, width = experts.w2_weight.shape
    top_k = layer.moe.topk.topk_config.top_k
    if layer.router.proj.weight.shape[0] != count or x.shape[0] * top_k > MAX_PAIRS:
        return f"{x.shape[0] * top_k} choices among {layer.router.proj.weight.shape[0]} of {count} experts"
    gpu = torch.cuda.get_device_name(x.device) if x.is_cuda else x.device.type
    if x.is_cuda and x.dtype is not torch.bfloat16:
        return f"no plan was measured on {gpu} with {str(x.dtype).removeprefix('torch.')}"
    plans = tuned_plans(gpu, Size(hidden, layer.mlp.down_proj.weight.shape[1], width, count, top_k))
    if plans is None:
        return f"no plan was measured on {gpu} for {count} experts of [{width}, {hidden}] beside a dense MLP"
    return plans[x.shape[0]] or "its ops one by one are as fast"


def _layer_reason(layer: Any, x: Tensor) -> str | None:
    """Asked at each forward: LoRA puts other modules in the place of a layer's linear ones."""
    mlp, router, moe = layer.mlp, layer.router, layer.moe
    if not is_gelu_mlp(mlp):
        return "an MLP that is not Gemma-4's"
    kinds = {mlp.gate_up_proj: MergedColumnParallelLinear, mlp.down_proj: RowParallelLinear}
    kinds[router.proj] = ReplicatedLinear
    for linear, kind in kinds.items():
        if type(linear) is not kind or not plain(linear) or getattr(linear, "gather_output", False):
            return f"a {type(linear).__name__} that is not a plain product"
        if getattr(linear, "tp_size", 1) != 1:
            return "products that several ranks share"
        weight = linear.weight
        if type(weight) not in (torch.nn.Parameter, Tensor) or weight.dim() != 2 or weight.stride(1) != 1:
            return f"a weight of the type {type(weight).__name__} that is no matrix with unit stride"
        if weight.dtype is not x.dtype or weight.device != x.device:
            return "weights of another dtype or device than the hidden states"
    if watched(mlp, mlp.act_fn, *kinds, router, moe, moe.experts):
        return "a module of the layer that hooks watch"
    return None
