"""What the routers of a mixture of experts decide: watched, and interfered with.

A Gemma-4 router returns (probabilities [N, E], weights [N, K], expert ids [N, K]) for N tokens, E experts and K of them
for each token. The weights include `per_expert_scale`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from transformers import Gemma4ForConditionalGeneration


@dataclass(frozen=True)
class Routed:
    """One layer's decisions in one forward: float32 `probabilities` [N, E], int64 `experts` [N, K]."""

    probabilities: torch.Tensor
    experts: torch.Tensor

    @property
    def shares(self) -> torch.Tensor:
        """Return the share of each expert of all the places that N * K tokens take: float32 [E]."""
        count = torch.bincount(self.experts.flatten(), minlength=self.probabilities.shape[1])
        return count / count.sum()


def routers(model: Gemma4ForConditionalGeneration) -> list[torch.nn.Module]:
    """Return one router for each layer that has experts, in order."""
    found = (getattr(layer, "router", None) for layer in model.model.language_model.layers)
    return [router for router in found if router is not None]


@contextmanager
def watched(model: Gemma4ForConditionalGeneration) -> Iterator[list[Routed]]:
    """Yield a list that grows by one `Routed` per router and forward, in order, while the block runs."""
    seen: list[Routed] = []

    def keep(_module: Any, _inputs: Any, output: tuple[torch.Tensor, ...]) -> None:
        seen.append(Routed(output[0], output[2]))

    with _on_routers(model, keep):
        yield seen


@contextmanager
def experts_exchanged(model: Gemma4ForConditionalGeneration, by: int = 1) -> Iterator[None]:
    """Send every token to the experts `by` places behind those that were chosen for it, with the weights of those."""

    def shift(_module: Any, _inputs: Any, output: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        probabilities, weights, experts = output
        return probabilities, weights, (experts + by) % probabilities.shape[1]

    with _on_routers(model, shift):
        yield


@contextmanager
def _on_routers(model: Gemma4ForConditionalGeneration, hook: Callable[..., Any]) -> Iterator[None]:
    handles = [router.register_forward_hook(hook) for router in routers(model)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def balance_loss(seen: list[Routed]) -> torch.Tensor:
    """Mean over layers of E * sum(share * mean probability): 1 if all experts are used alike, up to E if one is.

    Source: the auxiliary loss of Switch Transformers (arXiv 2101.03961, equation 4).
    """
    losses = [len(routed.shares) * (routed.shares * routed.probabilities.mean(0)).sum() for routed in seen]
    return torch.stack(losses).mean()
