"""Our kernel in the place of the matrix products of SGLang's unquantised linear layers, where they have few rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from gemma4_runtime.fusion.small_linear import product
from gemma4_runtime.release import UnquantizedLinearMethod


def around_apply(
    original: Callable[..., Tensor], method: Any, layer: Any, x: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Run around `UnquantizedLinearMethod.apply`: x [M, K] or more dimensions, to [M, N]."""
    if bias is None and type(method) is UnquantizedLinearMethod and not getattr(layer, "use_intel_amx_backend", False):
        made = product(x, layer.weight)
        if made is not None:
            return made
    return original(method, layer, x, bias)
