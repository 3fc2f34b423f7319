"""YOCO fast prefill: in a prefill, KV-shared layers run on the last token of each request alone.

Layers from the first KV-shared one on read the keys of their owners, which the layers before have written, and write
none. Of their output only the row that is sampled from is used, so the other rows are left zero. A chunk that is not
the last of its prompt is sampled from nowhere: it skips these layers as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from gemma4_runtime import current
from gemma4_runtime.current import switched_on
from gemma4_runtime.release import CaptureHiddenMode, Gemma4TextModel
from gemma4_runtime.yoco import eligible
from gemma4_runtime.yoco.attention_view import as_decode
from gemma4_runtime.yoco.short_prefill import UnfinishedChunk, shared_layers, short_prefill

OP = "yoco"

_LEAST_BESIDE_GRAPHS = 2048
"""Rows to save with which it is faster than a piecewise CUDA graph: below, launches bound a prefill, and a graph has
none. On one H200 a graph of 2048 rows was the faster one on E2B."""


def around_batch_init(original: Callable[..., Any], cls: type, batch: Any, model_runner: Any) -> Any:
    """Run around `ForwardBatch.init_new`: what the model cannot see, of the requests behind its batch."""
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
    """Run around `PiecewiseCudaGraphRunner.can_run`: no long prefill, of which a graph runs all rows in each layer."""
    can_run = original(runner, forward_batch)
    model = runner.model_runner.model
    model = getattr(model, "language_model", None) or getattr(model, "model", None)
    if not can_run or not (isinstance(model, Gemma4TextModel) and shared_layers(model) and switched_on(OP)):
        return can_run
    least = max(_LEAST_BESIDE_GRAPHS, current.settings().yoco_rows)
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
    """Run around `Gemma4TextModel.forward`: hidden states [T, H] that are right in the rows that are sampled from."""
    inputs = input_ids, positions, forward_batch, input_embeds, per_layer_inputs
    return short_prefill(OP, as_decode, original, model, inputs, {"pp_proxy_tensors": pp_proxy_tensors} | kwargs)
