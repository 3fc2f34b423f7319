"""YOCO fast prefill: in a prefill, KV-shared layers run on the last token of each request alone.

Layers from the first KV-shared one on read the keys of their owners, which the layers before have written, and write
none. Of their output only the row that is sampled from is used, so the other rows are left zero. A chunk that is not
the last of its prompt is sampled from nowhere: it skips these layers as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.model_executor.forward_context import forward_context, get_forward_context
from sglang.srt.models.gemma4_causal import Gemma4TextModel
from torch import Tensor

from gemma4_runtime.fusion.eligible import switched_on
from gemma4_runtime.fusion.paths import FUSED, PATHS
from gemma4_runtime.session import Session
from gemma4_runtime.yoco import attention_view, eligible, some_layers

OP = "yoco"
SKIPPED = "skipped: a chunk that is not the last"


_LEAST_BESIDE_GRAPHS = 1024
"""Rows to save with which it is faster than a piecewise CUDA graph: below, launches bound a prefill, and a graph has
none. A first value, between those that were timed without graphs."""


class UnfinishedChunk(list[str]):
    """The request ids of a batch that is one chunk, not its prompt's last.

    Told by the type of a field, because SGLang copies batches field by field.
    """


def around_batch_init(original: Callable[..., Any], cls: type, batch: Any, model_runner: Any) -> Any:
    """Around `ForwardBatch.init_new`: what the model cannot see, of the requests behind its batch."""
    if not (eligible.is_prefill(batch) and switched_on(OP)):
        return original(cls, batch, model_runner)
    chunked = batch.chunked_req
    unfinished = chunked is not None and all(request is chunked for request in batch.reqs)
    frozen = batch.spec_algorithm is not None and batch.spec_algorithm.is_frozen_kv_mtp()
    if frozen and batch.capture_hidden_mode is CaptureHiddenMode.FULL and not batch.return_hidden_states:
        # The MTP worker asks for every row and seeds its draft from the last one of each request.
        batch.capture_hidden_mode = CaptureHiddenMode.LAST
    made = original(cls, batch, model_runner)
    if unfinished:
        made.rids = UnfinishedChunk(made.rids)
    return made


def around_can_run(original: Callable[..., Any], runner: Any, forward_batch: Any) -> bool:
    """Around `PiecewiseCudaGraphRunner.can_run`: no long prefill, of which a graph runs all rows in each layer."""
    can_run = original(runner, forward_batch)
    model = runner.model_runner.model
    model = getattr(model, "language_model", model.model)
    if not can_run or not (isinstance(model, Gemma4TextModel) and _shared_layers(model) and switched_on(OP)):
        return can_run
    least = max(_LEAST_BESIDE_GRAPHS, Session.in_force().settings.yoco_rows)
    return eligible.reason(model, forward_batch, len(forward_batch.input_ids), least) is not None


def around_text_forward(
    original: Callable[..., Any],
    model: Any,
    input_ids: Tensor | None,
    positions: Tensor,
    forward_batch: Any,
    input_embeds: Tensor | None = None,
    per_layer_inputs: Tensor | None = None,
    pp_proxy_tensors: Any = None,
    **kwargs: Any,
) -> Any:
    """Around `Gemma4TextModel.forward`: hidden states [T, H] that are right in the rows that are sampled from."""
    inputs = input_ids, positions, forward_batch, input_embeds, per_layer_inputs
    if torch.compiler.is_compiling():
        return original(model, *inputs, pp_proxy_tensors=pp_proxy_tensors, **kwargs)
    shared = _shared_layers(model)
    if not (shared and eligible.is_prefill(forward_batch) and switched_on(OP)):
        return original(model, *inputs, pp_proxy_tensors=pp_proxy_tensors, **kwargs)
    least_saved = Session.in_force().settings.yoco_rows
    if reason := eligible.reason(model, forward_batch, positions.shape[0], least_saved):
        PATHS.took(OP, reason)
        return original(model, *inputs, pp_proxy_tensors=pp_proxy_tensors, **kwargs)
    unfinished = isinstance(forward_batch.rids, UnfinishedChunk)
    PATHS.took(OP, SKIPPED if unfinished else FUSED)
    return _forward(model, *inputs, model.config.num_hidden_layers - shared, unfinished, kwargs)


def _forward(
    model: Any,
    input_ids: Tensor | None,
    positions: Tensor,
    forward_batch: Any,
    input_embeds: Tensor | None,
    raw: Tensor | None,
    first: int,
    unfinished: bool,
    kwargs: dict[str, Any],
) -> Tensor:
    """first: the first KV-shared layer."""
    layers = model.config.num_hidden_layers
    rows = attention_view.last_rows(forward_batch)
    view = batch = None
    if not unfinished:
        batch = attention_view.decode_batch(forward_batch, rows, positions[rows])
        # Planned before any layer is launched: a plan waits for the device, which has nothing to do yet.
        view = attention_view.cross_decoder_view(forward_batch, batch, _window(model, first))
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


def _shared_layers(model: Any) -> int:
    return getattr(model.config, "num_kv_shared_layers", 0) or 0


def _window(model: Any, first: int) -> int | None:
    """The distance to the oldest key that the shared sliding layers see; None if there is none."""
    for layer in model.layers[first:]:
        if layer.self_attn.sliding_window is not None:
            return layer.self_attn.attn.sliding_window_size
    return None
