"""What an op is measured with: its inputs, and the same computation by us, by eager torch and by the release."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from gemma4_kernels.rounding import Rounding
from gemma4_repro.kernel_bench.plan import ModelShape

EPS = 1e-6
Tensors = tuple[torch.Tensor, ...]


class Norms(NamedTuple):
    """The two functions of sgl_kernel that SGLang's RMSNorm calls on CUDA, and two that its Gemma-4 attention calls."""

    rmsnorm: Callable[..., torch.Tensor]
    fused_add_rmsnorm: Callable[..., None]
    qkv_rmsnorm: Callable[..., None]
    rope: Callable[..., None]


def eager_norm(x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """Return the lines of Gemma4RMSNorm in transformers' modeling_gemma4.py."""
    normed = x.float()
    normed = normed * torch.pow(normed.pow(2).mean(-1, keepdim=True) + EPS, -0.5)
    return (normed if weight is None else normed * weight.float()).type_as(x)


class OpArms(ABC):
    """The arms of one op for one model and token count; each takes what `arguments` gives."""

    def __init__(self, model: ModelShape, tokens: int, device: str) -> None:
        self.model, self.tokens, self.device = model, tokens, device
        self._random = torch.Generator(device).manual_seed(0)

    def randn(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._random, dtype=torch.bfloat16, device=self.device)

    def hidden_rows(self) -> torch.Tensor:
        return self.randn(self.tokens, self.model.hidden)

    def weight(self) -> torch.Tensor:
        return self.randn(self.model.hidden)

    def scalar(self) -> torch.Tensor:
        return torch.full((1,), 0.7, dtype=torch.bfloat16, device=self.device)

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one tensor [T, H]."""
        return 2 * self.tokens * self.model.hidden

    @abstractmethod
    def activations(self) -> Tensors:
        """Return a new set of what differs from step to step."""

    @abstractmethod
    def weights(self) -> tuple[Any, ...]:
        """Return a new set of what differs from layer to layer."""

    @property
    @abstractmethod
    def moved_bytes(self) -> int:
        """What one launch has to read and write of activations."""

    def arguments(self, activations: Tensors, weights: tuple[Any, ...], layer: int) -> tuple[Any, ...]:
        return (*activations, *weights)

    @abstractmethod
    def ours(self, *arguments: Any, rounding: Rounding, path: Any = "auto") -> Any:
        """Run our op."""

    @abstractmethod
    def eager(self, *arguments: Any) -> Any:
        """Do the same in eager torch, in Hugging Face's order."""

    @abstractmethod
    def released(self, norms: Norms, *arguments: Any) -> Any:
        """Run what SGLang 0.5.13.post1 launches in its place."""
