"""Launches one jit kernel with little work on the host."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch


class Launcher:
    """Launches a kernel whose parameters are: pointers, strides, numbers, compile-time constants, in this order.

    The last constant is not the caller's: whether this launch may start before the kernel ahead of it has ended, see
    early_launch.py.

    Triton's own launch binds, specialises and looks up the compiled kernel by a text each time, which costs a multiple
    of the launch itself. Where every address is a multiple of 16 bytes and every stride of 16 elements, one compiled
    kernel fits all calls of the same dtypes and constants, so it is kept here and called with addresses. Anything else
    goes through Triton. The numbers must be parameters that the kernel does not specialise on.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._compiled: dict[tuple[Any, ...], Any] = {}

    def launch(
        self,
        programs: int,
        pointers: Sequence[torch.Tensor],
        strides: tuple[int, ...],
        numbers: tuple[int | float, ...],
        constants: tuple[int | bool | float, ...],
        *,
        num_warps: int,
        fuse: bool,
        early: bool,
    ) -> None:
        """One launch of 1..2^31 - 1 programs on the current stream of the pointers' device.

        fuse: may a product and a sum become one rounding? Eager rounds both. early: start before the kernel ahead has
        ended, on a device that can: a gain where the launch is what takes the time.
        """
        device = pointers[0].get_device()
        if device >= 0 and device != torch.cuda.current_device():
            # Triton compiles for, and launches on, the current device.
            with torch.cuda.device(device):
                self.launch(
                    programs, pointers, strides, numbers, constants, num_warps=num_warps, fuse=fuse, early=early
                )
            return
        addresses = [pointer.data_ptr() for pointer in pointers]
        bits = 0
        for number in (*addresses, *strides):
            bits |= number
        early = early and device >= 0 and can_launch_early(device)
        constants = (*constants, early)
        options: dict[str, Any] = {"num_warps": num_warps, "enable_fp_fusion": fuse}
        if early:
            # Not among the interpreter's options.
            options["launch_pdl"] = True
        if device < 0 or bits & 15:
            self.kernel[(programs,)](*pointers, *strides, *numbers, *constants, **options)
            return
        # A number's type is the compiled parameter's: an eps of 0 is not one of 0.0.
        types = [*[pointer.dtype for pointer in pointers], *map(type, numbers)]
        key = (device, num_warps, fuse, constants, *types)
        compiled = self._compiled.get(key)
        if compiled is None:
            arguments = (*pointers, *strides, *numbers, *constants)
            compiled = self._compiled[key] = self.kernel.warmup(*arguments, grid=(programs,), **options)
        compiled[(programs, 1, 1)](*addresses, *strides, *numbers, *constants)


@functools.cache
def can_launch_early(device: int) -> bool:
    """Has this CUDA device griddepcontrol, as Hopper and what came after it have? ROCm calls its devices CUDA too."""
    return torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 9
