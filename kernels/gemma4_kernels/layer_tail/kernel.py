"""Build and launch layer_tail.cu on the current stream, by plans that kernels/bench/bench_layer_tail.py measured."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from gemma4_kernels.cuda_source import CudaLaunch, function_of
from gemma4_kernels.layer_tail.spec import MAX_ROWS, TailPlan
from gemma4_kernels.small_m_linear.tuned import by_rows, tables_of

SOURCE = Path(__file__).with_name("layer_tail.cu")
FOLDER = SOURCE.parent
"""Of the tables of plans by GPU, `tuned_*.json`."""
KERNEL = "layer_tail_kernel"
_TILE, _PADDING_BYTES, _BF16_BYTES = 8, 64, 2
_COPIES = 8
_WEIGHTS, _NORMS = 6, 5
_NOT_YET = -1
_POINTERS = ("attended", "residual", "ple", "scalar")
_MADE = ("attention_out", "mlp_out", "ple_gated", "ple_out", "gated", "hidden", "normed", "projected", "arrivals")


class _Arguments(ctypes.Structure):
    """layer_tail.cu has the same."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        ("weight", ctypes.c_void_p * _WEIGHTS),
        ("norm", ctypes.c_void_p * _NORMS),
        *((name, ctypes.c_void_p) for name in _MADE),
        *((f"{name}_stride", ctypes.c_int64) for name in _POINTERS[:3]),
        ("weight_stride", ctypes.c_int64 * _WEIGHTS),
        *((name, ctypes.c_int) for name in ("rows", "inner", "wide", "next_columns")),
        ("eps", ctypes.c_float),
    )


def ring_bytes(plan: TailPlan) -> int:
    """Return the shared memory of its ring."""
    return plan.stages * _TILE * (plan.stage_depth * _BF16_BYTES + _PADDING_BYTES)


def defined(plan: TailPlan, hidden: int, ple: int, programs: int, early: bool) -> dict[str, int]:
    """Return what the source is compiled for, by its names."""
    # Of HIDDEN columns a block has whole pairs.
    most = 2 * -(-hidden // (2 * programs))
    return {
        "STAGE_DEPTH": plan.stage_depth,
        "STAGES": plan.stages,
        "IN_FLIGHT": min(plan.in_flight, plan.stages),
        "WARPS": plan.num_warps,
        "PROGRAMS": programs,
        "HIDDEN": hidden,
        "PLE": ple,
        "TILES": -(-most // _TILE),
        "EARLY": int(early),
    }


class Scratch:
    """What the blocks of a launch pass to each other, of one stream: kernels of a stream follow each other.

    A graph that is captured on a stream on which nothing ran before makes its own anew in each replay.
    """

    def __init__(self, hidden: int, ple: int, device: torch.device) -> None:
        def unwritten(rows: int, width: int) -> torch.Tensor:
            return torch.full((rows, width), _NOT_YET, dtype=torch.int16, device=device)

        self.attention_out, self.mlp_out, self.ple_out = (unwritten(MAX_ROWS, hidden) for _ in range(3))
        self.ple_gated = unwritten(_COPIES * MAX_ROWS, ple)
        self.arrivals = torch.zeros(1, dtype=torch.int32, device=device)


_SCRATCH: dict[tuple[torch.device, int, int, int], Scratch] = {}


def _scratch(hidden: int, ple: int, device: torch.device) -> Scratch:
    key = device, torch.cuda.current_stream(device).cuda_stream, hidden, ple
    found = _SCRATCH.get(key)
    if found is None:
        found = Scratch(hidden, ple, device)
        if not torch.cuda.is_current_stream_capturing():
            _SCRATCH[key] = found
    return found


def launch(
    plan: TailPlan,
    rows: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    scalar: torch.Tensor,
    weights: Sequence[torch.Tensor],
    norms: Sequence[torch.Tensor],
    made: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None],
    eps: float,
    early: bool,
) -> None:
    """Launch it on the current device.

    Args:
        plan: How it streams.
        rows: attended, residual, ple.
        scalar: One element.
        weights: o, gate_up, down, ple_gate, ple_projection, and the next projection if there is one.
        norms: post_attention, pre_feed_forward, post_feed_forward, post_ple, next.
        made: hidden, normed, projected.
        eps: Of the norms.
        early: Whether it may start before the kernel ahead has ended.

    Raises:
        RuntimeError: The driver refused it: its blocks do not all fit on this device at a time, say.
    """
    attended, residual, ple = rows
    hidden, normed, projected = made
    (count, inner), width, wide = attended.shape, residual.shape[1], weights[2].shape[1]
    device = attended.device
    scratch = _scratch(width, ple.shape[1], device)
    gated = torch.empty((count, wide), dtype=attended.dtype, device=device)
    built, arguments = _built(plan, width, ple.shape[1], attended.get_device(), early)
    with built.lock:
        arguments.attended, arguments.residual, arguments.ple = (one.data_ptr() for one in rows)
        arguments.scalar = scalar.data_ptr()
        for number, weight in enumerate(weights):
            arguments.weight[number], arguments.weight_stride[number] = weight.data_ptr(), weight.stride(0)
        for number, norm in enumerate(norms):
            arguments.norm[number] = norm.data_ptr()
        arguments.attention_out, arguments.mlp_out = scratch.attention_out.data_ptr(), scratch.mlp_out.data_ptr()
        arguments.ple_gated, arguments.ple_out = scratch.ple_gated.data_ptr(), scratch.ple_out.data_ptr()
        arguments.arrivals, arguments.gated = scratch.arrivals.data_ptr(), gated.data_ptr()
        arguments.hidden, arguments.normed = hidden.data_ptr(), normed.data_ptr()
        arguments.projected = None if projected is None else projected.data_ptr()
        arguments.next_columns = 0 if projected is None else projected.shape[1]
        arguments.attended_stride, arguments.residual_stride = attended.stride(0), residual.stride(0)
        arguments.ple_stride = ple.stride(0)
        arguments.rows, arguments.inner, arguments.wide, arguments.eps = count, inner, wide, eps
        built()


@functools.cache
def _built(plan: TailPlan, hidden: int, ple: int, device: int, early: bool) -> tuple[CudaLaunch, Any]:
    programs = torch.cuda.get_device_properties(device).multi_processor_count - plan.spared
    named = tuple(defined(plan, hidden, ple, programs, early).items())
    shared, arguments = ring_bytes(plan), _Arguments()
    function = function_of(SOURCE, KERNEL, named, device, shared)
    threads = 32 * plan.num_warps + 32
    launch = CudaLaunch(
        function, KERNEL, programs, threads, shared, [arguments], early=early, all_at_once=True, device=device
    )
    return launch, arguments


@functools.cache
def tuned_plans(gpu: str, hidden: int, wide: int, inner: int) -> tuple[TailPlan | None, ...] | None:
    """Return the plans of a layer's tail by its number of rows, or None if its size was not measured on that GPU.

    Args:
        gpu: As CUDA names it.
        hidden: Width of the residual stream.
        wide: Width of the MLP.
        inner: Width of the attention ahead of its output projection.

    Returns:
        Of 0..MAX_ROWS rows, a plan, or None where the ops one by one were faster.
    """
    return by_rows(tables().get((gpu, "bfloat16"), {}).get((hidden, wide, inner)), MAX_ROWS)


def tables() -> dict[tuple[str, str], dict[tuple[int, ...], dict[int, TailPlan | None]]]:
    """Return the plans by (GPU, dtype), (hidden, wide, inner) and number of rows."""
    return tables_of("tuned", TailPlan, FOLDER, ("hidden", "wide", "inner"))
