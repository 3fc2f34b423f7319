"""Workers are forked instead of spawned, so that they share the parent's imports instead of repeating 10 s of them."""

from __future__ import annotations

import multiprocessing
from typing import Any


def fork_workers(result: Any, *args: Any, **kwargs: Any) -> None:
    """Run after SGLang's engine has chosen `spawn`, choose `fork`. Safe here: no CUDA context can exist before it."""
    multiprocessing.set_start_method("fork", force=True)
