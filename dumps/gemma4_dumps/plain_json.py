"""Turn whatever a probe holds into values that strict JSON can carry.

A probe runs inside a crashing server: a NumPy scalar or a NaN in its evidence must not cost the whole dump.
"""

import math
from collections.abc import Mapping, Sequence, Set
from datetime import datetime
from typing import Any

import numpy as np
from pydantic import BaseModel

MAX_DEPTH = 32
MAX_REPR_CHARS = 500


def plain(value: Any, depth: int = 0) -> Any:
    """Return `value` as None, bool, int, float, str, list or dict, recursively.

    Non-finite floats become "nan", "inf" and "-inf" (JSON has no word for them). Strings lose lone surrogates,
    which undecodable command-line bytes bring along and no UTF-8 reader accepts. Anything unknown becomes its repr.
    """
    if value is None or isinstance(value, bool):
        return value
    if depth > MAX_DEPTH:
        return "[nested too deeply]"
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, np.generic):
        return plain(value.item(), depth + 1)
    if isinstance(value, int):
        # IntEnum and the like: only the number travels. Python itself refuses to print integers beyond 4300 digits.
        return int(value) if value.bit_length() < 1024 else "[integer of more than 1024 bits]"
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, BaseModel):
        return plain(value.model_dump(), depth + 1)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(plain(str(k))): plain(v, depth + 1) for k, v in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist(), depth + 1)
    if isinstance(value, Sequence | Set) and not isinstance(value, bytes | bytearray | memoryview):
        return [plain(v, depth + 1) for v in value]
    return plain(repr(value)[:MAX_REPR_CHARS])
