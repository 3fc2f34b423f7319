"""A norm whose result may have been computed before it is asked for, by the tail of the layer before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class CarriedNorm:
    """Stands in for the `forward` of one norm.

    A tail leaves its hidden states and their norm. Asked for the norm of that very tensor, the carried one is the
    answer; asked for that of any other (a captured graph's other bucket, gathered rows, what a pipeline rank received),
    the norm computes it. SGLang writes to no layer's hidden states between a tail and the norm after it.
    """

    def __init__(self, norm: Any) -> None:
        self.norm = norm
        self._own: Callable[..., Any] = norm.forward
        self._carried: tuple[torch.Tensor, torch.Tensor] | None = None
        norm.forward = self

    def carry(self, hidden: torch.Tensor, normed: torch.Tensor) -> None:
        """hidden, normed: [T, H]. Held until the norm is next asked for anything."""
        self._carried = hidden, normed

    def __call__(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return self._own(x, *args, **kwargs)
        carried, self._carried = self._carried, None
        if carried is not None and carried[0] is x and not args and not kwargs:
            return carried[1]
        return self._own(x, *args, **kwargs)
