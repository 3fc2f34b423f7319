"""Which CUDA devices a process started from here would see, asked of the driver and not of torch."""

from __future__ import annotations

import json
import subprocess
import sys

from gemma4_repro.crash.machine import Gpu

_LIMIT_S = 30
# In a process of its own: the driver opens devices and starts threads, and the caller may be about to become a server.
# 75 and 76 are the attributes of the compute capability, major and minor.
_ASK_THE_DRIVER = """
import ctypes, json
driver, number, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), []
def ask(function, *arguments):
    if (code := getattr(driver, function)(*arguments)) != 0:
        raise SystemExit(f"{function}: {code}")
ask("cuInit", 0)
ask("cuDeviceGetCount", ctypes.byref(number))
for index in range(number.value):
    device, name, value, memory = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_int(), ctypes.c_size_t()
    ask("cuDeviceGet", ctypes.byref(device), index)
    ask("cuDeviceGetName", name, len(name), device)
    capability = []
    for attribute in (75, 76):
        ask("cuDeviceGetAttribute", ctypes.byref(value), attribute, device)
        capability.append(value.value)
    ask("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    found.append([name.value.decode(errors="replace"), *capability, memory.value])
print(json.dumps(found))
"""


def cuda_devices() -> tuple[Gpu, ...]:
    """Return the devices that the CUDA driver shows. CUDA_VISIBLE_DEVICES counts; no driver means no device."""
    command = [sys.executable, "-I", "-S", "-c", _ASK_THE_DRIVER]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        return tuple(Gpu(*row) for row in json.loads(done.stdout)) if done.returncode == 0 else ()
    except (subprocess.TimeoutExpired, ValueError):
        # The plugin asks again, through torch; nothing is let through here that it would refuse.
        return ()


def cuda_is_present() -> bool:
    """Return whether the CUDA driver shows at least one device."""
    return bool(cuda_devices())
