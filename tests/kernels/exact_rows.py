"""What a row op gives without any rounding, in fp64, and how large the terms were that it is made of."""

from __future__ import annotations

from typing import NamedTuple

import torch


class Exact(NamedTuple):
    """value: the result. size: the sum of the magnitudes that were added up to it, which rounding is relative to."""

    value: torch.Tensor
    size: torch.Tensor

    def normed(self, weight: torch.Tensor, eps: float = 1e-6) -> Exact:
        inverse = (self.value.square().mean(-1, keepdim=True) + eps).rsqrt()
        return Exact(self.value * inverse * weight.double(), self.size * inverse * weight.double().abs())

    def plus(self, other: Exact) -> Exact:
        return Exact(self.value + other.value, self.size + other.size)

    def times(self, factor: torch.Tensor | float) -> Exact:
        factor = torch.as_tensor(factor, device=self.value.device).double()
        return Exact(self.value * factor, self.size * factor.abs())


def exact(rows: torch.Tensor) -> Exact:
    return Exact(rows.double(), rows.double().abs())
