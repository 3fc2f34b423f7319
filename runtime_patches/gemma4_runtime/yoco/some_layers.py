"""Per-layer inputs of some layers only, by SGLang's own lines or by ple-front-end's kernel, whichever is in force."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from gemma4_runtime.release import UnquantizedLinearMethod, use_intel_amx_backend


def can_be_narrowed(model: Any) -> bool:
    """Say whether the projection of the per-layer inputs is a plain matrix, of whose rows some can be taken."""
    projection = model.per_layer_model_projection
    return (
        type(projection.quant_method) is UnquantizedLinearMethod
        and projection.bias is None
        and not use_intel_amx_backend(projection)
    )


class SomeLayers:
    """Stands for a Gemma4TextModel in `project_per_layer_inputs`, with the layers from start to end of its own."""

    def __init__(self, model: Any, start: int, end: int) -> None:
        self._model = model
        width = model.hidden_size_per_layer_input
        self._weight = model.per_layer_model_projection.weight[start * width : end * width]
        self.config = SimpleNamespace(num_hidden_layers=end - start, hidden_size=model.config.hidden_size)

    def per_layer_model_projection(self, inputs_embeds: Tensor) -> tuple[Tensor, None]:
        return torch.nn.functional.linear(inputs_embeds, self._weight), None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def per_layer_inputs(model: Any, inputs_embeds: Tensor, raw: Tensor | None, start: int, end: int) -> Tensor:
    """[T, end - start, P] of inputs_embeds [T, H] and raw [T, L, P]."""
    return type(model).project_per_layer_inputs(
        SomeLayers(model, start, end), inputs_embeds, None if raw is None else raw[:, start:end]
    )
