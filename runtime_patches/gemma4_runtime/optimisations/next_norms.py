"""Tells each layer whose norm comes after its tail, for `cross-layer-norm`, and whose projection, for `layer-tail`."""

from __future__ import annotations

from typing import Any

from gemma4_kernels.cross_layer_norm.boundary import NextNorm, boundary_after
from gemma4_runtime.fusion.carried_norm import CarriedNorm
from gemma4_runtime.fusion.layer_plan import set_next_norm


def after_text_model_init(result: Any, model: Any, *args: Any, **kwargs: Any) -> None:
    """Run after `Gemma4TextModel.__init__`: one carried norm per layer of this pipeline rank, and the model's own."""
    layers, end = model.config.num_hidden_layers, model.end_layer
    for index in range(model.start_layer, end):
        after = boundary_after(index, layers=layers, end_layer=end).next_norm
        norm = {
            NextNorm.LAYER: lambda index=index: model.layers[index + 1].input_layernorm,
            NextNorm.FINAL: lambda: model.norm,
            NextNorm.NONE: lambda: None,
        }[after]()
        following = model.layers[index + 1].self_attn if after is NextNorm.LAYER else None
        set_next_norm(model.layers[index], None if norm is None else CarriedNorm(norm), following)
