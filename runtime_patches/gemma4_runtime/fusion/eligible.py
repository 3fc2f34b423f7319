"""What our kernels can take: modules that norm as they do, and tensors of the shapes, dtypes and devices they know.

Everything here is asked before anything runs, so that a refusal leaves SGLang's own path as it was. A reason is a text
for the record of paths; None means that there is none.
"""

from __future__ import annotations

from typing import Any

import torch

from gemma4_kernels.qk_norm_rope.spec import MAX_HEAD_DIM
from gemma4_kernels.row_arguments import DTYPES
from gemma4_kernels.row_plan import MAX_WIDTH
from gemma4_runtime import current
from gemma4_runtime.release import (
    Gemma4RMSNorm,
    Gemma4RotaryEmbedding,
    RMSNorm,
    RotaryEmbedding,
    get_global_server_args,
)
from gemma4_runtime.release.arguments import settled
from gemma4_runtime.settings import HostEngine


def eps_of(norm: Any) -> float:
    """RMSNorm and Gemma4RMSNorm name it differently."""
    return norm.variance_epsilon if isinstance(norm, RMSNorm) else norm.eps


def norms_reason(*norms: Any) -> str | None:
    """Say why these are no plain rms(x) * weight with one eps; None if they are."""
    for norm in norms:
        if type(norm) is RMSNorm:
            plain = norm.variance_size_override is None and not norm.cast_x_before_out_mul and norm.has_weight
        else:
            plain = type(norm) is Gemma4RMSNorm and norm.scale_shift == 0
        if not plain:
            return f"a {type(norm).__name__} that is not rms(x) * weight"
        if norm.weight.dtype not in DTYPES or norm.weight.shape[-1] > MAX_WIDTH:
            return f"a norm's weight is {list(norm.weight.shape)} {norm.weight.dtype}"
    return "norms with different eps" if len({eps_of(norm) for norm in norms}) > 1 else None


def rope_reason(rotary: Any, head_dim: int) -> str | None:
    """Say why this is no turn of all pairs of a head, by a table of sines and cosines; None if it is.

    Of either class the table is [P, head_dim], and so is Gemma4RotaryEmbedding's rotary_dim: it fills up a partial turn
    with angles of 0. What a table holds is read at each call, because SGLang replaces one that has become too short.
    """
    if type(rotary) not in (RotaryEmbedding, Gemma4RotaryEmbedding) or not rotary.is_neox_style:
        return f"a {type(rotary).__name__} that is not Gemma-4's"
    if not rotary.head_size == rotary.rotary_dim == head_dim:
        return f"a rotation of {rotary.rotary_dim} of {head_dim} elements"
    if head_dim & (head_dim - 1) or not 2 <= head_dim <= MAX_HEAD_DIM:
        return f"heads of {head_dim} elements"
    return None


def server_reason() -> str | None:
    """Say why this server must have SGLang's own arithmetic; None if it need not."""
    arguments = settled(get_global_server_args())
    if arguments.enable_deterministic_inference:
        return "deterministic inference: SGLang's batch-invariant norms"
    if arguments.rl_on_policy_target is not None:
        return "rl_on_policy_target asks for the trainer's norms"
    return None


def rows_reason(rows: torch.Tensor) -> str | None:
    """Say why hidden states cannot be taken: [T, H] with unit stride, on CUDA or on the host engine."""
    if not (rows.is_cuda or on_host_engine()):
        return f"hidden states on {rows.device.type}"
    if torch.version.hip is not None:
        return "hidden states on ROCm"
    if rows.dim() != 2 or rows.stride(1) != 1 or rows.dtype not in DTYPES:
        return f"hidden states of {rows.dim()} dimensions, {rows.dtype}"
    return None


def alike(rows: torch.Tensor, first: torch.Tensor) -> bool:
    """Same shape, dtype and device, and unit stride: what the ops ask of tensors beside each other."""
    return (
        rows.shape == first.shape
        and rows.dtype is first.dtype
        and rows.device == first.device
        and rows.stride(-1) == first.stride(-1)
    )


def on_host_engine() -> bool:
    """Say whether there the ops take their torch paths, so that what a CPU serves has been through the same wiring."""
    return current.settings().host_engine is not HostEngine.OFF
