"""Our kernel in the place of the scale, norm, add and scale of `Gemma4TextModel.project_per_layer_inputs`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from gemma4_runtime.current import switched_on
from gemma4_runtime.fusion import ops
from gemma4_runtime.fusion.eligible import alike, eps_of, norms_reason, rows_reason, server_reason
from gemma4_runtime.fusion.paths import PATHS

OP = "ple-front-end"


def around_project(
    original: Callable[..., Any], model: Any, inputs_embeds: Tensor, per_layer_inputs: Tensor | None = None
) -> Tensor | None:
    """Run around `project_per_layer_inputs`: inputs_embeds [T, H], per_layer_inputs [T, L, P] or None, to [T, L, P]."""
    if model.per_layer_model_projection is None or not switched_on(OP):
        return original(model, inputs_embeds, per_layer_inputs)
    if reason := server_reason() or norms_reason(model.per_layer_projection_norm) or rows_reason(inputs_embeds):
        PATHS.took(OP, reason)
        return original(model, inputs_embeds, per_layer_inputs)
    projection, _ = model.per_layer_model_projection(inputs_embeds)
    shape = model.config.num_hidden_layers, model.hidden_size_per_layer_input
    projection = projection.unflatten(-1, shape)
    if per_layer_inputs is not None and not alike(per_layer_inputs, projection):
        PATHS.took(OP, "tensors that are not alike")
        return original(model, inputs_embeds, per_layer_inputs)
    norm = model.per_layer_projection_norm
    PATHS.ran(OP, projection)
    return ops.ple_front_end(projection, norm.weight, per_layer_inputs, model.config.hidden_size, eps_of(norm))
