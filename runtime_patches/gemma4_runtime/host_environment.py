"""What the host engine needs in the environment before Python starts: libraries read these at import."""

from __future__ import annotations

import os
from collections.abc import Mapping

NEEDED: Mapping[str, str] = {"SGLANG_USE_CPU_ENGINE": "1", "TRITON_INTERPRET": "1"}


def missing_from_environment() -> list[str]:
    """`NAME=value` for each variable that is not set as the host engine needs it."""
    return [f"{name}={value}" for name, value in NEEDED.items() if os.environ.get(name) != value]
