"""MTP with overlap off: the scheduler passes tensors of a pipeline that the worker of frozen-KV MTP does not take.

SGLang 0.5.19 to 0.5.23 raise TypeError at the first prefill with --disable-overlap-schedule. Without pipeline stages,
which this worker does not support, there are no such tensors, and None is passed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def without_pipeline_tensors(
    original: Callable[..., Any], worker: Any, batch: Any, *args: Any, pp_proxy_tensors: Any = None, **named: Any
) -> Any:
    """Calls SGLang's function without `pp_proxy_tensors`, which are None."""
    return original(worker, batch, *args, **named)
