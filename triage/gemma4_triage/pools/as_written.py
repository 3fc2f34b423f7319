"""Amounts of memory and loads as people write them.

GB and GiB differ by 7%, and SGLang's log says GB where it means GiB.
"""

from __future__ import annotations

import math
import re

from gemma4_runtime.pools.demand import Workload
from gemma4_triage.errors import UsageMistake

_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
    "TIB": 1 << 40,
}
_WORKLOAD = re.compile(r"([0-9]{1,7})\s*[xX*]\s*([0-9]{1,9})\s*\+\s*([0-9]{1,9})")
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,12})?)\s*([A-Za-z]{0,3})")


def parse_size(text: str, option: str) -> int:
    """Turn "80GiB" into bytes, rounded down; `option` is for the message.

    Raises:
        UsageMistake: it has no unit, is no amount, or is zero.
    """
    match = _SIZE.fullmatch(text.strip())
    unit = None if match is None else _UNITS.get(match[2].upper())
    if match is None or unit is None:
        raise UsageMistake(
            f"{option} {text!r} is no amount of memory with a unit",
            "write 80GiB (2^30 bytes; SGLang's log and nvidia-smi count in these) or 80GB (10^9 bytes)",
        )
    size = math.floor(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
    if size <= 0:
        raise UsageMistake(f"{option} {text!r} is nothing", "give what the server has")
    return size


def gib_text(size_bytes: int) -> str:
    """Return both units, so that neither can be taken for the other."""
    return f"{size_bytes / (1 << 30):.3f} GiB ({size_bytes / 1e9:.3f} GB)"


def parse_workload(text: str) -> Workload:
    """Read a workload such as "80x8000+1000".

    Raises:
        UsageMistake: it is not written like that, or has no request or no prompt.
    """
    match = _WORKLOAD.fullmatch(text.strip())
    if match is None:
        raise UsageMistake(
            f"--workload {text!r} is no workload", "write REQUESTSxPROMPT+OUTPUT in tokens, for example 80x8000+1000"
        )
    workload = Workload(int(match[1]), int(match[2]), int(match[3]))
    if not workload.requests or not workload.prompt_tokens:
        raise UsageMistake(f"--workload {text!r} has no request or no prompt", "both have to be 1 or more")
    return workload
