"""A prefill whose KV-shared layers run on the last row of each request: the rest of the model is as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gemma4_runtime import current
from gemma4_runtime.current import switched_on
from gemma4_runtime.fusion.paths import FUSED, PATHS
from gemma4_runtime.release import forward_context, get_forward_context
from gemma4_runtime.yoco import attention_view, eligible, some_layers

SKIPPED = "skipped: a chunk that is not the last"
IN_GRAPHS = "in piecewise graphs"

Plan = Callable[[Any, Tensor, Tensor, int | None], tuple[Any, Any]]
"""Of a batch, the rows [B] that are left of it, their positions [B], and the distance of the sliding layers to their
oldest key: the batch that shared layers are given, and the planned attention backend beside it."""


class UnfinishedChunk(list[str]):
    """The request ids of a batch that is one chunk, not its prompt's last.

    Told by the type of a field, because SGLang copies batches field by field.
    """


def shared_layers(model: Any) -> int:
    """Say how many layers, its last ones, read the keys of layers before them."""
    return getattr(model.config, "num_kv_shared_layers", 0) or 0


def short_prefill(
    op: str,
    plan: Plan,
    original: Callable[..., Any],
    model: Any,
    inputs: tuple[Tensor | None, Tensor, Any, Tensor | None, Tensor | None],
    more: dict[str, Any],
) -> Any:
    """Return hidden states [T, H] in the place of `original`'s, where the batch is eligible; `op` counts which it was.

    `inputs` are input_ids, positions, forward_batch, input_embeds, per_layer_inputs; `more` are its keyword arguments.
    """
    if torch.compiler.is_compiling():
        return original(model, *inputs, **more)
    _, positions, forward_batch, *_ = inputs
    shared = shared_layers(model)
    if not (shared and eligible.is_prefill(forward_batch) and switched_on(op)):
        return original(model, *inputs, **more)
    least_saved = current.settings().yoco_rows
    if reason := eligible.reason(model, forward_batch, positions.shape[0], least_saved):
        PATHS.took(op, reason)
        return original(model, *inputs, **more)
    unfinished = isinstance(forward_batch.rids, UnfinishedChunk)
    PATHS.took(op, SKIPPED if unfinished else FUSED)
    # An eligible model is no stage of a pipeline, so nothing comes from one before it.
    layer_arguments = {name: value for name, value in more.items() if name != "pp_proxy_tensors"}
    first = model.config.num_hidden_layers - shared
    return forward(model, *inputs, first, None if unfinished else plan, layer_arguments)


def forward(
    model: Any,
    input_ids: Tensor | None,
    positions: Tensor,
    forward_batch: Any,
    input_embeds: Tensor | None,
    raw: Tensor | None,
    first: int,
    plan: Plan | None,
    kwargs: dict[str, Any],
) -> Tensor:
    """first: the first KV-shared layer. plan: None for a chunk that is sampled from nowhere; it skips these layers."""
    layers = model.config.num_hidden_layers
    rows = attention_view.last_rows(forward_batch)
    view = batch = None
    if plan is not None:
        # Before any layer is launched: what a plan of SGLang's waits for is then the step before, at most.
        batch, view = plan(forward_batch, rows, positions[rows], window(model, first))
    if input_embeds is not None:
        embeds = input_embeds
    else:
        embeds, raw = model.embed_tokens(input_ids), model.get_per_layer_inputs(input_ids)
    # Rows of its own: SGLang's layers add into their input, and with that into the embeddings.
    last_embeds, last_raw = embeds[rows], None if raw is None else raw[rows]
    hidden = embeds
    owners = _PerLayer(model, embeds, raw, 0, first)
    for index in range(first):
        hidden, _ = model.layers[index](
            positions=positions,
            hidden_states=hidden,
            per_layer_input=owners.of(index),
            forward_batch=forward_batch,
            **kwargs,
        )
    result = hidden.new_zeros(hidden.shape)
    if batch is None:
        return result
    shared = _PerLayer(model, last_embeds, last_raw, first, layers)
    hidden = hidden[rows]
    with forward_context(replace(get_forward_context(), attn_backend=view)):
        for index in range(first, layers):
            hidden, _ = model.layers[index](
                positions=batch.positions,
                hidden_states=hidden,
                per_layer_input=shared.of(index),
                forward_batch=batch,
                **kwargs,
            )
    result[rows] = model.norm(hidden)
    return result


class _PerLayer:
    """The per-layer inputs of layers start to end, for these rows."""

    def __init__(self, model: Any, embeds: Tensor, raw: Tensor | None, start: int, end: int) -> None:
        self._inputs, self._start = None, start
        if model.per_layer_model_projection is None:
            return
        if some_layers.can_be_narrowed(model):
            self._inputs = some_layers.per_layer_inputs(model, embeds, raw, start, end)
        else:
            self._inputs, self._start = model.project_per_layer_inputs(embeds, raw), 0

    def of(self, index: int) -> Tensor | None:
        return None if self._inputs is None else self._inputs[:, index - self._start]


def window(model: Any, first: int) -> int | None:
    """Return the distance to the oldest key that the shared sliding layers see; None if there is none."""
    for layer in model.layers[first:]:
        if layer.self_attn.sliding_window is not None:
            return layer.self_attn.attn.sliding_window_size
    return None
