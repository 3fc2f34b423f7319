"""Build and launch kernels in CUDA C++: CUDA's own compiler library makes each for this GPU, once.

What it needs is `cuda.bindings` (cuda-python, which SGLang requires).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

_HEADERS = tuple(Path(__file__).with_name(name) for name in ("numbers.cuh", "shared.cuh", "streaming.cuh"))
"""What the sources have in common, and include."""
_LAUNCH_EARLY, _ALL_AT_ONCE = 6, 2
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION and CU_LAUNCH_ATTRIBUTE_COOPERATIVE."""
_MOST_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""


@functools.cache
def unavailable(device: torch.device) -> str | None:
    """Return why these kernels cannot run on a device, or None if they can."""
    if device.type != "cuda" or torch.version.hip is not None:
        return "not a CUDA device"
    if torch.cuda.get_device_capability(device)[0] < 9:
        return "a GPU before Hopper"
    try:
        importlib.import_module("cuda.bindings.nvrtc")
    except ImportError:
        return "cuda.bindings is not installed"
    return None


def compiled(source: Path, defined: Mapping[str, int], architecture: str) -> bytes:
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

    texts, names = [path.read_bytes() for path in _HEADERS], [path.name.encode() for path in _HEADERS]
    made = nvrtc.nvrtcCreateProgram(source.read_bytes(), source.name.encode(), len(_HEADERS), texts, names)
    program = checked(made)
    options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
    options += [f"-D{name}={value}".encode() for name, value in defined.items()]
    try:
        (status, *_) = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if int(status):
            text = bytearray(checked(nvrtc.nvrtcGetProgramLogSize(program)))
            checked(nvrtc.nvrtcGetProgramLog(program, text))
            raise RuntimeError(f"{source.name} does not compile for {architecture}: {text.decode(errors='replace')}")
        code = bytearray(checked(nvrtc.nvrtcGetCUBINSize(program)))
        checked(nvrtc.nvrtcGetCUBIN(program, code))
    finally:
        nvrtc.nvrtcDestroyProgram(program)
    return bytes(code)


def machine_code(source: Path, defined: Mapping[str, int], architecture: str) -> bytes:
    """Return what `compiled` makes, out of Triton's cache folder if it was made before."""
    from triton.runtime.cache import get_cache_manager

    version = importlib.import_module("cuda.bindings.nvrtc").nvrtcVersion()
    read = [path.read_bytes() for path in (*_HEADERS, source)]
    text = repr((read, dict(defined), architecture, version))
    cache, name = get_cache_manager(hashlib.sha256(text.encode()).hexdigest()), source.stem + ".cubin"
    path = cache.get_file(name)
    if path is not None:
        return Path(path).read_bytes()
    code = compiled(source, defined, architecture)
    cache.put(code, name)
    return code


@functools.cache
def function_of(source: Path, kernel: str, defined: tuple[tuple[str, int], ...], device: int, shared_bytes: int) -> int:
    """Compile and load a kernel on a device, and return the driver's handle of it.

    Raises:
        RuntimeError: The compiler or the driver refused it.
    """
    major, minor = torch.cuda.get_device_capability(device)
    code = machine_code(source, dict(defined), f"sm_{major}{minor}a")
    driver, module, function = _driver(), ctypes.c_void_p(), ctypes.c_void_p()

    def checked(what: str, status: int) -> None:
        if status:
            raise RuntimeError(f"CUDA's driver could not {what} {kernel}: error {status}")

    # The module is never unloaded: graphs that were captured hold its kernel.
    checked("load", driver.cuModuleLoadData(ctypes.byref(module), code))
    checked("find", driver.cuModuleGetFunction(ctypes.byref(function), module, kernel.encode()))
    checked("size", driver.cuFuncSetAttribute(function, _MOST_SHARED, shared_bytes))
    assert function.value is not None
    return function.value


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


class CudaLaunch:
    """A launch of one function with the same grid and arguments each time; what the arguments hold may change.

    Args:
        function: Of `function_of`.
        kernel: Its name, for errors.
        programs: Blocks.
        threads: Of a block.
        shared_bytes: Dynamic shared memory of a block.
        arguments: ctypes objects that the kernel's parameters are read from at each launch.
        early: Whether it may start before the kernel ahead has ended.
        all_at_once: Whether its blocks wait for each other: the driver then refuses a grid that does not fit.
        device: The CUDA device that it was loaded on.
    """

    __slots__ = ("_config", "_device", "_function", "_kept", "_kernel", "_launch", "_pointers", "_stream", "lock")

    def __init__(
        self,
        function: int,
        kernel: str,
        programs: int,
        threads: int,
        shared_bytes: int,
        arguments: Sequence[Any],
        *,
        early: bool,
        all_at_once: bool = False,
        device: int,
    ) -> None:
        from triton.runtime import driver

        active: Any = driver.active
        self._stream, self._device, self._kernel = active.get_current_stream, device, kernel
        self._launch, self._function = _driver().cuLaunchKernelEx, ctypes.c_void_p(function)
        self._pointers = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        wanted = [_LAUNCH_EARLY] * early + [_ALL_AT_ONCE] * all_at_once
        attributes = (_Attribute * 2)()
        for attribute, number in zip(attributes, wanted, strict=False):
            attribute.id = number
            attribute.value[0] = 1
        self._config = _Config(
            grid=(programs, 1, 1),
            block=(threads, 1, 1),
            shared_bytes=shared_bytes,
            attributes=attributes,
            attribute_count=len(wanted),
        )
        self._kept, self.lock = (arguments, attributes), threading.Lock()

    def __call__(self) -> None:
        """Launch it on the current stream of its device. Whoever changes its arguments holds `lock` until then.

        Raises:
            RuntimeError: The driver refused the launch.
        """
        self._config.stream = self._stream(self._device)
        status = self._launch(ctypes.byref(self._config), self._function, self._pointers, None)
        if status:
            raise RuntimeError(f"CUDA's driver refused to launch {self._kernel}: error {status}")


@functools.cache
def _driver() -> Any:
    """Return CUDA's driver library, which is loaded already where torch runs on CUDA."""
    return ctypes.CDLL("libcuda.so.1")
