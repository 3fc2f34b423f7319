"""Launch streamed.cu, the product of few rows that streams its weight: built on the spot, once per process and plan.

It takes bf16 alone, on Hopper and later.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from gemma4_kernels.cuda_source import CudaLaunch, function_of
from gemma4_kernels.small_m_linear.spec import GATES, MAX_ROWS, Gate, StreamedPlan
from gemma4_kernels.small_m_linear.tuned import streamed_plans, streamed_tables

SOURCE = Path(__file__).with_name("streamed.cu")
MOST_HELD_DEPTH = 4096
"""Up to this depth all of x is held in registers."""
_TILE, _PADDING_BYTES, _BF16_BYTES = 8, 64, 2
_KERNEL = "streamed_product_kernel"


class Built(NamedTuple):
    """What the kernel is compiled for; streamed.cu names each."""

    stage_depth: int
    stages: int
    in_flight: int
    warps: int
    co_resident: int
    rows: int
    held_chunks: int
    tiles: int
    gate: int
    early: int

    @property
    def ring_bytes(self) -> int:
        """Return the shared memory of its ring."""
        return self.stages * _TILE * (self.stage_depth * _BF16_BYTES + _PADDING_BYTES)

    @property
    def defined(self) -> dict[str, int]:
        """Return it by the names of the source."""
        return {name.upper(): value for name, value in self._asdict().items()}


def built_for(plan: StreamedPlan, rows: int, columns: int, depth: int, gate: Gate, programs: int, early: bool) -> Built:
    """Return what a product [rows, columns] of this depth is compiled for, shared among so many blocks."""
    chunks = -(-depth // plan.stage_depth)
    held = depth <= MOST_HELD_DEPTH
    tile = _TILE // 2 if gate == "halves" else _TILE
    most = -(-columns // programs)
    return Built(
        plan.stage_depth,
        plan.stages,
        min(plan.in_flight, plan.stages),
        plan.num_warps,
        plan.co_resident,
        8 if rows <= 8 else 16,
        chunks if held else 0,
        1 if held else -(-most // tile),
        GATES.index(gate),
        int(early),
    )


def fits(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Say whether the kernel can read these: bf16, 16-byte rows, and a depth in whole blocks of 32."""
    return (
        x.dtype is torch.bfloat16
        and x.shape[1] % 32 == 0
        and not (x.data_ptr() | weight.data_ptr()) & 15
        and weight.stride(0) % 8 == 0
        and (x.stride(0) % 8 == 0 or x.shape[0] == 1)
    )


@functools.cache
def streams_behind(device: int, rows: int, width: int) -> bool:
    """Say whether products of so many rows of this width are streamed on this CUDA device, by its table."""
    gpu = torch.cuda.get_device_name(device)
    sizes = streamed_tables().get((gpu, "bfloat16"), {})
    plans = [streamed_plans(gpu, "bfloat16", *size) for size in sizes if size[1] == width]
    return rows <= MAX_ROWS and any(found is not None and found[rows] is not None for found in plans)


class StreamedLaunch:
    """A launch whose shapes, strides and plan are settled: `again` launches it on tensors, as a KnownLaunch does.

    Args:
        built: What it is compiled for.
        programs: How many blocks.
        strides: Of x, weight, out and factor, in elements.
        numbers: Rows, columns, depth.
        device: The CUDA device.
    """

    __slots__ = ("_addresses", "_device", "_launch")

    def __init__(
        self, built: Built, programs: int, strides: Sequence[int], numbers: Sequence[int], device: int
    ) -> None:
        self._device, self._addresses = device, [ctypes.c_uint64() for _ in range(4)]
        function = function_of(SOURCE, _KERNEL, tuple(built.defined.items()), device, built.ring_bytes)
        arguments = [*self._addresses, *map(ctypes.c_int64, strides), *map(ctypes.c_int, numbers)]
        threads, early = 32 * built.warps + 32, bool(built.early)
        self._launch = CudaLaunch(
            function, _KERNEL, programs, threads, built.ring_bytes, arguments, early=early, device=device
        )

    def again(self, pointers: Sequence[torch.Tensor]) -> bool:
        """Launch it on other tensors of the same shapes, strides and dtypes; say whether it could be.

        Raises:
            RuntimeError: The driver refused the launch.
        """
        x, weight, out, factor = (pointer.data_ptr() for pointer in pointers)
        if (x | weight) & 15 or torch.cuda.current_device() != self._device:
            return False
        first, second, third, fourth = self._addresses
        with self._launch.lock:
            first.value, second.value, third.value, fourth.value = x, weight, out, factor
            self._launch()
        return True


def launch_of(
    plan: StreamedPlan,
    pointers: Sequence[torch.Tensor],
    gate: Gate,
    early: bool,
) -> StreamedLaunch:
    """Return the launch of a product of these tensors: x, weight, out and factor, on the current device."""
    x, weight, out, factor = pointers
    (rows, depth), columns, device = x.shape, out.shape[1], x.get_device()
    programs = min(torch.cuda.get_device_properties(device).multi_processor_count, columns)
    built = built_for(plan, rows, columns, depth, gate, programs, early)
    strides = [tensor.stride(0) for tensor in (x, weight, out, factor)]
    return StreamedLaunch(built, programs, strides, (rows, columns, depth), device)
