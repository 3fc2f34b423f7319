"""Matrix products of a few rows by our kernel, where it was measured faster than cuBLAS on this GPU.

A decode step reads all weights once and computes little with them. The kernel is launched while the one ahead still
runs and cuts the product so that all multiprocessors read; which cut is fastest for a size and a number of rows was
measured (`gemma4_kernels.small_m_linear.tuned`). Whatever is not in the table stays with cuBLAS. Where a gate follows
the product, and nothing else reads it, the gate is computed in the same launch. With `streamed-products` the kernel of
streamed.cu takes the products of which its table has it faster still.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from gemma4_kernels.cuda_source import unavailable
from gemma4_kernels.launcher import let_next_in_where
from gemma4_kernels.small_m_linear.launch import small_m_geglu, small_m_gelu_mul, small_m_linear
from gemma4_kernels.small_m_linear.spec import MAX_ROWS, Plan, StreamedPlan
from gemma4_kernels.small_m_linear.streamed import fits, streams_behind
from gemma4_kernels.small_m_linear.tuned import streamed_plans, tables, tuned_plans
from gemma4_runtime.current import switched_on
from gemma4_runtime.fusion.eligible import rows_reason, server_reason
from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.release import (
    GeluAndMul,
    Gemma3MLP,
    MergedColumnParallelLinear,
    ReplicatedLinear,
    UnquantizedLinearMethod,
)

OP = "small-m-linear"
STREAMED = "streamed-products"
"""The op whose kernel takes the place of OP's where it is faster still."""

let_next_in_where(lambda: switched_on(STREAMED), streams_behind)


def product(x: Tensor, weight: Tensor) -> Tensor | None:
    """Return x [M, K] times weight [N, K] transposed, or None where SGLang's own has to compute it.

    A product of more rows than the kernel has, as in a prefill, is not recorded as a path, nor is one of no rows.
    """
    plan = _plan(x, weight)
    if plan is None:
        return None
    _took(plan)
    return small_m_linear(x, weight, plan)


def gated_mlp_input(mlp: Any, x: Tensor) -> Tensor | None:
    """Return gelu_tanh(gate) * up of x [M, K], [M, N], or None where the MLP's own lines have to compute it."""
    if not is_gelu_mlp(mlp):
        return None
    linear = mlp.gate_up_proj
    if type(linear) is not MergedColumnParallelLinear or linear.gather_output or watched(mlp, mlp.act_fn, linear):
        return None
    plan = _plan(x, linear.weight) if plain(linear) else None
    if plan is None:
        return None
    _took(plan)
    return small_m_geglu(x, linear.weight, plan)


def gelu_mul(linear: Any, x: Tensor, factor: Tensor) -> Tensor | None:
    """Return gelu_tanh(linear(x)) * factor, [M, N], or None where SGLang's own product has to be made first."""
    if type(linear) is not ReplicatedLinear or watched(linear) or not plain(linear):
        return None
    fits = factor.dim() == 2 and factor.shape == (x.shape[0], linear.weight.shape[0]) and factor.stride(1) == 1
    plan = _plan(x, linear.weight) if fits and factor.dtype is x.dtype and factor.device == x.device else None
    if plan is None:
        return None
    _took(plan)
    return small_m_gelu_mul(x, linear.weight, factor, plan)


def _took(plan: Plan | StreamedPlan) -> None:
    PATHS.took(OP)
    if isinstance(plan, StreamedPlan):
        PATHS.took(STREAMED)


def is_gelu_mlp(mlp: Any) -> bool:
    """Say whether this MLP is SGLang's gated one with gelu_tanh."""
    return type(mlp) is Gemma3MLP and type(mlp.act_fn) is GeluAndMul and mlp.act_fn.approximate == "tanh"


def plain(linear: Any) -> bool:
    """Say whether SGLang computes this linear layer as x @ weight.T and nothing else."""
    return (
        type(linear.quant_method) is UnquantizedLinearMethod
        and linear.bias is None
        and not getattr(linear, "use_intel_amx_backend", False)
    )


def watched(*modules: torch.nn.Module) -> bool:
    """Say whether somebody, as SGLang's `--forward-hooks`, has to see what goes in and out of one of these."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in modules)


def _plan(x: Tensor, weight: Tensor) -> Plan | StreamedPlan | None:
    """Return the plan of a product, or None where SGLang's own has to compute it, and record why."""
    if torch.compiler.is_compiling() or x.dim() != 2 or not 1 <= x.shape[0] <= MAX_ROWS or not switched_on(OP):
        return None
    found = _plan_or_reason(x, weight)
    if isinstance(found, str):
        PATHS.took(OP, found)
        return None
    return found


def _plan_or_reason(x: Tensor, weight: Tensor) -> Plan | StreamedPlan | str:
    """Return the plan of a product of 1 to MAX_ROWS rows, or why there is none."""
    if reason := server_reason() or rows_reason(x):
        return reason
    if type(weight) not in (torch.nn.Parameter, Tensor):
        # A quantiser of tensors, as torchao's, leaves SGLang's method as it was.
        return f"a weight of the type {type(weight).__name__}"
    if weight.dim() != 2 or weight.stride(1) != 1 or weight.dtype is not x.dtype or weight.device != x.device:
        return "a weight that is no matrix of the rows' dtype and device with unit stride"
    plans = _plans_or_reason(x.device, x.dtype, *weight.shape)
    if isinstance(plans, str):
        return plans
    if switched_on(STREAMED):
        streamed = _streamed_plan_or_reason(x, weight)
        if not isinstance(streamed, str):
            return streamed
        PATHS.took(STREAMED, streamed)
    return plans[x.shape[0]] or "cuBLAS is as fast"


@functools.cache
def _plans_or_reason(
    device: torch.device, dtype: torch.dtype, columns: int, depth: int
) -> tuple[Plan | None, ...] | str:
    """Return the plans that were measured on a device of this name, by number of rows, or why there are none."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    name = str(dtype).removeprefix("torch.")
    if (gpu, name) not in tables():
        return f"no plan was measured on {gpu} with {name}"
    return tuned_plans(gpu, name, columns, depth) or f"no plan was measured for a weight of [{columns}, {depth}]"


def _streamed_plan_or_reason(x: Tensor, weight: Tensor) -> StreamedPlan | str:
    """Return the plan of the streaming kernel, or why there is none."""
    if reason := unavailable(x.device):
        return reason
    plans = _streamed_plans(torch.cuda.get_device_name(x.device), x.dtype, *weight.shape)
    plan = plans[x.shape[0]] if plans else None
    if plan is None:
        return "small-m-linear or cuBLAS is as fast, or nobody measured"
    return plan if fits(x, weight) else "rows that are not bf16 at multiples of 16 bytes"


@functools.cache
def _streamed_plans(gpu: str, dtype: torch.dtype, columns: int, depth: int) -> tuple[StreamedPlan | None, ...] | None:
    return streamed_plans(gpu, str(dtype).removeprefix("torch."), columns, depth)
