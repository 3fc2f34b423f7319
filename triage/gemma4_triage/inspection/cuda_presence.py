"""Whether a process started from here would see a CUDA device, asked of the driver and not of torch."""

from __future__ import annotations

import subprocess
import sys

_LIMIT_S = 30
# In a process of its own: the driver opens devices and starts threads, and the caller may be about to become a server.
_ASK_THE_DRIVER = """
import ctypes, sys
driver, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
found = driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 and count.value > 0
sys.exit(0 if found else 1)
"""


def cuda_is_present() -> bool:
    """True if the CUDA driver shows at least one device. CUDA_VISIBLE_DEVICES counts; no driver means no device."""
    command = [sys.executable, "-I", "-S", "-c", _ASK_THE_DRIVER]
    try:
        return subprocess.run(command, capture_output=True, timeout=_LIMIT_S, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        # The plugin asks again, through torch; nothing is let through here that it would refuse.
        return False
