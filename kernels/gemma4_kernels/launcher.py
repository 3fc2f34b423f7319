"""Launches one jit kernel with little work on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol

import torch

_MOST_KNOWN = 4096


def _nowhere(device: int, programs: int, width: int) -> bool:
    return False


_lets_next_in: Callable[[], bool] = bool
_lets_next_in_here: Callable[[int, int, int], bool] = _nowhere


class KnownLaunch:
    """A launch that has been made once: the same again needs only addresses.

    Args:
        compiled: Triton's compiled kernel.
        programs: How many.
        arguments: What follows the addresses.
        device: The CUDA device that it was compiled for.
    """

    __slots__ = ("_device", "_enter", "_exit", "_function", "_metadata", "_run", "_stream", "arguments", "programs")

    def __init__(self, compiled: Any, programs: int, arguments: tuple[Any, ...], device: int) -> None:
        # Here: the torch path, which a CPU takes, needs no Triton.
        from triton import knobs
        from triton.runtime import driver

        self.programs, self.arguments, self._device = programs, arguments, device
        self._run, self._function, self._metadata = compiled.run, compiled.function, compiled.packed_metadata
        active: Any = driver.active
        self._stream = active.get_current_stream
        self._enter, self._exit = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook

    def again(self, pointers: Sequence[torch.Tensor]) -> bool:
        """Launch it on other tensors of the same shapes, strides and dtypes; say whether it could be.

        It cannot where an address is no multiple of 16 bytes, on another device than the current one, and while a
        profiler of Triton's listens: `Launcher.launch` can.
        """
        addresses = [pointer.data_ptr() for pointer in pointers]
        bits = 0
        for address in addresses:
            bits |= address
        if bits & 15 or torch.cuda.current_device() != self._device or self._enter.calls or self._exit.calls:
            return False
        stream = self._stream(self._device)
        self._run(
            self.programs, 1, 1, stream, self._function, self._metadata, None, None, None, *addresses, *self.arguments
        )
        return True


class Repeatable(Protocol):
    """A launch that can be made again on other tensors of the same shapes, strides and dtypes."""

    def again(self, pointers: Sequence[torch.Tensor]) -> bool:
        """Launch it again; say whether it could be."""
        ...


class TwoLaunches(NamedTuple):
    """The two launches of one call, the second behind the first.

    Attributes:
        first: The one.
        second: The other.
        split: How many of the call's pointers are the first one's; the others are the second one's.
    """

    first: Repeatable
    second: Repeatable
    split: int

    def again(self, pointers: Sequence[torch.Tensor]) -> bool:
        """Launch both again; say whether they could be."""
        return self.first.again(pointers[: self.split]) and self.second.again(pointers[self.split :])


class KnownLaunches:
    """Launches of one op by what its checks look at: shapes, strides, dtypes, devices, numbers and modes.

    So that arguments are checked once for each of them and not at every call, which costs as much as a launch.
    """

    def __init__(self) -> None:
        self._launches: dict[Hashable, Repeatable] = {}

    def get(self, key: Hashable) -> Repeatable | None:
        """Return the launch of a call like this one; None if there has been none."""
        return self._launches.get((_lets_next_in(), key))

    def keep(self, key: Hashable, launch: Repeatable | None) -> None:
        """Remember a launch, if it can be made again. Where prefills had very many lengths, it begins anew."""
        if launch is not None:
            if len(self._launches) >= _MOST_KNOWN:
                self._launches.clear()
            self._launches[_lets_next_in(), key] = launch


def facts(*tensors: torch.Tensor) -> tuple[Any, ...]:
    """Return what checks look at of tensors, in a form that a dict takes."""
    return tuple([(one.shape, one.stride(), one.dtype, one.device) for one in tensors])


class Launcher:
    """Launches a kernel whose parameters are: pointers, strides, numbers, compile-time constants, in this order.

    The last constant is not the caller's: whether this launch may start before the kernel ahead of it has ended, and
    lets the one behind it start before that, see early_launch.py.

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
        constants: tuple[int | bool | float | str, ...],
        *,
        num_warps: int,
        fuse: bool,
        early: bool,
        lets_in: bool = True,
    ) -> KnownLaunch | None:
        """Launches the kernel once, on the current stream of the pointers' device.

        Args:
            programs: 1..2^31 - 1.
            pointers: The kernel's tensors.
            strides: What follows them.
            numbers: What follows the strides.
            constants: What the kernel is compiled for.
            num_warps: Of a program.
            fuse: May a product and a sum become one rounding? Eager rounds both.
            early: Start before the kernel ahead has ended, on a device that can: a gain where the launch is what takes
                the time.
            lets_in: Let the one behind start before this one's own inputs are there, where `let_next_in_where` says so.

        Returns:
            What makes the same launch again; None where it depends on more than shapes, strides and dtypes.
        """
        device = pointers[0].get_device()
        if device >= 0 and device != torch.cuda.current_device():
            # Triton compiles for, and launches on, the current device.
            with torch.cuda.device(device):
                self.launch(
                    programs,
                    pointers,
                    strides,
                    numbers,
                    constants,
                    num_warps=num_warps,
                    fuse=fuse,
                    early=early,
                    lets_in=lets_in,
                )
            return None
        addresses = [pointer.data_ptr() for pointer in pointers]
        bits = 0
        for number in (*addresses, *strides):
            bits |= number
        early = early and device >= 0 and can_launch_early(device)
        first = early and lets_in and _lets_next_in() and _lets_next_in_here(device, programs, pointers[0].shape[-1])
        constants = (*constants, 0 if not early else 2 if first else 1)
        options: dict[str, Any] = {"num_warps": num_warps, "enable_fp_fusion": fuse}
        if early:
            # Not among the interpreter's options.
            options["launch_pdl"] = True
        if device < 0 or bits & 15:
            self.kernel[(programs,)](*pointers, *strides, *numbers, *constants, **options)
            return None
        # A number's type is the compiled parameter's: an eps of 0 is not one of 0.0.
        types = [*[pointer.dtype for pointer in pointers], *map(type, numbers)]
        key = (device, num_warps, fuse, constants, *types)
        compiled = self._compiled.get(key)
        if compiled is None:
            arguments = (*pointers, *strides, *numbers, *constants)
            compiled = self._compiled[key] = self.kernel.warmup(*arguments, grid=(programs,), **options)
        compiled[(programs, 1, 1)](*addresses, *strides, *numbers, *constants)
        return KnownLaunch(compiled, programs, (*strides, *numbers, *constants), device)


@functools.cache
def can_launch_early(device: int) -> bool:
    """Has this CUDA device griddepcontrol, as Hopper and what came after it have? ROCm calls its devices CUDA too."""
    return torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 9


def let_next_in_where(on: Callable[[], bool], where: Callable[[int, int, int], bool]) -> None:
    """Settle whether norms let the product behind them start before their own inputs are there.

    It is a gain where that product is streamed: it then fills its ring while the kernel ahead of the norm still runs.
    Other products take room from that one by it, and are slower.

    Args:
        on: Asked at each launch, also of one that is known: whether any does.
        where: Asked of a launch that is new, with its CUDA device, its programs and the width of its first tensor. A
            norm has a program for each row.
    """
    global _lets_next_in, _lets_next_in_here
    _lets_next_in, _lets_next_in_here = on, where


def let_nothing_in() -> None:
    """Have each kernel let the one behind it start once its own inputs are there, as from the start."""
    let_next_in_where(bool, _nowhere)
