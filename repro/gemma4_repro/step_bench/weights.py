"""Random weights with which a step's numbers are of the size of a trained model's.

SGLang's dummy weights are uniform in +-0.001, the scalars of the layers too: after a few layers nothing is left, all
logits are equal, and a comparison of logits would say nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from sglang.srt.layers.layernorm import Gemma4RMSNorm, RMSNorm
from sglang.srt.models.gemma4_causal import Gemma4DecoderLayer, Gemma4Router, Gemma4TextModel

DRAWN = (
    "drawn in the process from a fixed seed: matrices normal with fan-in^-0.5, the router's with 2; norms uniform in "
    "0.5..1.5, those after a block in 0.1..0.3, q and k norms over the fourth root of the head dim; layer "
    "scalars in 0.5..1.5"
)


def text_model_of(model: torch.nn.Module) -> Any:
    """Return SGLang's Gemma4TextModel within it."""
    return next(module for module in model.modules() if isinstance(module, Gemma4TextModel))


@torch.no_grad()
def redraw(model: torch.nn.Module, seed: int = 0) -> None:
    """New values in the text model's own tensors, so that captured graphs read them."""
    text = text_model_of(model)
    device = next(text.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in text.named_parameters():
        _draw(name, parameter.data, generator)
    for module in text.modules():
        if isinstance(module, Gemma4DecoderLayer):
            # Far enough from 1 that a step which leaves them out is another step.
            module.get_buffer("layer_scalar").uniform_(0.5, 1.5, generator=generator)
        if isinstance(module, Gemma4Router):
            # SGLang folds it once, at the first forward, which has been.
            module.fuse_scale()


def _draw(name: str, weight: torch.Tensor, generator: torch.Generator) -> None:
    if weight.dim() > 1:
        weight.normal_(0, _spread(name, weight), generator=generator)
        return
    weight.uniform_(0.5, 1.5, generator=generator)
    if "q_norm" in name or "k_norm" in name:
        # Attention has no scale of its own; without this, each query would read one key alone.
        weight.mul_(weight.shape[-1] ** -0.25)
    elif ".post_" in name:
        # A block adds less than there is, as in a trained model.
        weight.mul_(0.2)


def _spread(name: str, weight: torch.Tensor) -> float:
    if name.endswith("router.proj.weight"):
        # Its input has a norm of 1: logits of a few units, as a trained router's.
        return 2.0
    if "embed_tokens_per_layer" in name:
        return 2.0**-4
    return weight.shape[-1] ** -0.5


@torch.no_grad()
def move_norms(model: torch.nn.Module, seed: int = 0) -> None:
    """Move every norm's weights up or down by one or two units in the last place."""
    weights = _norms(model)
    generator = torch.Generator(weights[0].device).manual_seed(seed)
    for weight in weights:
        up = torch.rand(weight.shape, generator=generator, device=weight.device) < 0.5
        step = torch.finfo(weight.dtype).eps
        weight.mul_(torch.where(up, 1 + step, 1 - step).to(weight.dtype))


@contextmanager
def moved_norms(model: torch.nn.Module, seed: int = 0) -> Iterator[None]:
    """`move_norms` for the time of the block."""
    weights = _norms(model)
    kept = [weight.clone() for weight in weights]
    move_norms(model, seed)
    try:
        yield
    finally:
        for weight, old in zip(weights, kept, strict=True):
            weight.copy_(old)


def _norms(model: torch.nn.Module) -> list[torch.Tensor]:
    modules = text_model_of(model).modules()
    return [module.weight.data for module in modules if isinstance(module, (RMSNorm, Gemma4RMSNorm))]
