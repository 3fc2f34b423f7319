"""Random weights in a server that has loaded dummy ones. SGLang imports this in the scheduler's process, by name.

A POST to /update_weights_from_tensor with such a name as `load_format` calls the function of that name with the model
and the tensors that were sent, of which there are none.
"""

from __future__ import annotations

from typing import Any

import torch

from gemma4_repro.step_bench.weights import move_norms as move
from gemma4_repro.step_bench.weights import redraw


@torch.no_grad()
def draw(model: torch.nn.Module, named_tensors: list[tuple[str, Any]]) -> None:
    """Draw the text model's weights, as `step_bench.weights` does, and the vision tower's if there is one."""
    redraw(model)
    for part in _vision_parts(model):
        _draw_vision(part)


def move_norms(model: torch.nn.Module, named_tensors: list[tuple[str, Any]]) -> None:
    """Move every norm up or down by one or two units in the last place, the vision tower's too."""
    move(model)
    for norm in (weight for part in _vision_parts(model) for weight in part.parameters() if weight.dim() < 2):
        weight = norm.data
        up = torch.arange(weight.numel(), device=weight.device).reshape(weight.shape) % 2 == 0
        step = torch.finfo(weight.dtype).eps
        weight.mul_(torch.where(up, 1 + step, 1 - step).to(weight.dtype))


def _vision_parts(model: torch.nn.Module) -> list[torch.nn.Module]:
    found = [getattr(model, name, None) for name in ("vision_tower", "embed_vision")]
    return [part for part in found if part is not None and list(part.parameters())]


def _draw_vision(module: torch.nn.Module) -> None:
    generator = torch.Generator(next(module.parameters()).device).manual_seed(1)
    for name, parameter in module.named_parameters():
        weight = parameter.data
        if weight.dim() < 2:
            weight.uniform_(0.5, 1.5, generator=generator)
        elif "position_embedding_table" in name:
            weight.normal_(0, 1, generator=generator)
        else:
            weight.normal_(0, weight.shape[-1] ** -0.5, generator=generator)
