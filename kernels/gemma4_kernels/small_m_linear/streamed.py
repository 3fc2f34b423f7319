"""Build and launch streamed.cu: CUDA's own compiler library makes it for this GPU, once per process and plan.

It takes bf16 alone, on Hopper and later, where `cuda.bindings` (cuda-python, which SGLang requires) is there.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from gemma4_kernels.small_m_linear.spec import GATES, MAX_ROWS, Gate, StreamedPlan
from gemma4_kernels.small_m_linear.tuned import streamed_plans, streamed_tables

SOURCE = Path(__file__).with_name("streamed.cu")
MOST_HELD_DEPTH = 4096
"""Up to this depth all of x is held in registers."""
_TILE, _PADDING_BYTES, _BF16_BYTES = 8, 64, 2
_KERNEL = b"streamed_product_kernel"
_LAUNCH_EARLY = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""


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


def compiled(built: Built, architecture: str) -> bytes:
    """Return the machine code for an architecture such as `sm_90a`. No GPU is needed.

    Raises:
        ImportError: cuda.bindings is not installed.
        RuntimeError: The compiler refused the source; the text is its own.
    """
    nvrtc = importlib.import_module("cuda.bindings.nvrtc")

    def checked(answer: tuple[Any, ...]) -> Any:
        if int(answer[0]):
            raise RuntimeError(f"the compiler library answered {answer[0]!r}")
        return answer[1] if len(answer) > 1 else None

    program = checked(nvrtc.nvrtcCreateProgram(SOURCE.read_bytes(), SOURCE.name.encode(), 0, [], []))
    defined = {name.upper(): value for name, value in built._asdict().items()}
    options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
    options += [f"-D{name}={value}".encode() for name, value in defined.items()]
    try:
        (status, *_) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if int(status):
            text = bytearray(checked(nvrtc.nvrtcGetProgramLogSize(program)))
            checked(nvrtc.nvrtcGetProgramLog(program, text))
            raise RuntimeError(f"{SOURCE.name} does not compile for {architecture}: {text.decode(errors='replace')}")
        code = bytearray(checked(nvrtc.nvrtcGetCUBINSize(program)))
        checked(nvrtc.nvrtcGetCUBIN(program, code))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return bytes(code)


@functools.cache
def unavailable(device: torch.device) -> str | None:
    """Return why this kernel cannot run on a device, or None if it can."""
    if device.type != "cuda" or torch.version.hip is not None:
        return "not a CUDA device"
    if torch.cuda.get_device_capability(device)[0] < 9:
        return "a GPU before Hopper"
    try:
        importlib.import_module("cuda.bindings.nvrtc")
    except ImportError:
        return "cuda.bindings is not installed"
    return None


def machine_code(built: Built, architecture: str) -> bytes:
    """Return what `compiled` makes, out of Triton's cache folder if it was made before."""
    from triton.runtime.cache import get_cache_manager

    version = importlib.import_module("cuda.bindings.nvrtc").nvrtcVersion()
    text = repr((SOURCE.read_bytes(), built, architecture, version))
    cache, name = get_cache_manager(hashlib.sha256(text.encode()).hexdigest()), SOURCE.stem + ".cubin"
    path = cache.get_file(name)
    if path is not None:
        return Path(path).read_bytes()
    code = compiled(built, architecture)
    cache.put(code, name)
    return code


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


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint64 * 8))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


class StreamedLaunch:
    """A launch whose shapes, strides and plan are settled: `again` launches it on tensors, as a KnownLaunch does.

    Args:
        function: Of the driver.
        built: What it was compiled for.
        programs: How many blocks.
        strides: Of x, weight, out and factor, in elements.
        numbers: Rows, columns, depth.
        device: The CUDA device that it was loaded on.
    """

    __slots__ = ("_addresses", "_config", "_device", "_function", "_kept", "_launch", "_lock", "_pointers", "_stream")

    def __init__(
        self, function: int, built: Built, programs: int, strides: Sequence[int], numbers: Sequence[int], device: int
    ) -> None:
        from triton.runtime import driver

        active: Any = driver.active
        self._stream, self._device = active.get_current_stream, device
        self._launch, self._function = _driver().cuLaunchKernelEx, ctypes.c_void_p(function)
        self._addresses = (ctypes.c_uint64 * 4)()
        longs, ints = (ctypes.c_int64 * 4)(*strides), (ctypes.c_int * 3)(*numbers)
        attribute = _Attribute(id=_LAUNCH_EARLY)
        attribute.value[0] = 1
        places = [ctypes.addressof(self._addresses) + 8 * number for number in range(4)]
        places += [ctypes.addressof(longs) + 8 * number for number in range(4)]
        places += [ctypes.addressof(ints) + 4 * number for number in range(3)]
        self._pointers = (ctypes.c_void_p * len(places))(*places)
        self._config = _Config(
            grid=(programs, 1, 1),
            block=(32 * built.warps + 32, 1, 1),
            shared_bytes=built.ring_bytes,
            attributes=ctypes.pointer(attribute),
            attribute_count=built.early,
        )
        self._kept, self._lock = (longs, ints, attribute), threading.Lock()

    def again(self, pointers: Sequence[torch.Tensor]) -> bool:
        """Launch it on other tensors of the same shapes, strides and dtypes; say whether it could be.

        Raises:
            RuntimeError: The driver refused the launch.
        """
        x, weight, out, factor = (pointer.data_ptr() for pointer in pointers)
        if (x | weight) & 15 or torch.cuda.current_device() != self._device:
            return False
        addresses = self._addresses
        with self._lock:
            addresses[0], addresses[1], addresses[2], addresses[3] = x, weight, out, factor
            self._config.stream = self._stream(self._device)
            status = self._launch(ctypes.byref(self._config), self._function, self._pointers, None)
        if status:
            raise RuntimeError(f"CUDA's driver refused to launch {_KERNEL.decode()}: error {status}")
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
    return StreamedLaunch(_function(built, device), built, programs, strides, (rows, columns, depth), device)


@functools.cache
def _function(built: Built, device: int) -> int:
    """Compile and load the kernel on a device, and return the driver's handle of it."""
    major, minor = torch.cuda.get_device_capability(device)
    code = machine_code(built, f"sm_{major}{minor}a")
    driver, module, function = _driver(), ctypes.c_void_p(), ctypes.c_void_p()
    # The module is never unloaded: graphs that were captured hold its kernel.
    _checked("load", driver.cuModuleLoadData(ctypes.byref(module), code))
    _checked("find", driver.cuModuleGetFunction(ctypes.byref(function), module, _KERNEL))
    most_shared = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _checked("size", driver.cuFuncSetAttribute(function, most_shared, built.ring_bytes))
    assert function.value is not None
    return function.value


def _checked(what: str, status: int) -> None:
    if status:
        raise RuntimeError(f"CUDA's driver could not {what} {_KERNEL.decode()}: error {status}")


@functools.cache
def _driver() -> Any:
    """Return CUDA's driver library, which is loaded already where torch runs on CUDA."""
    return ctypes.CDLL("libcuda.so.1")
