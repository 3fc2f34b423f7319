"""YOCO fast prefill: in a prefill, KV-shared layers run on the last token of each request alone.

Beside piecewise CUDA graphs, the graphs of a few rows run these layers (`yoco/cut_graph.py`).

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
from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.release import CaptureHiddenMode, Gemma4TextModel
from gemma4_runtime.yoco import eligible
from gemma4_runtime.yoco.attention_view import as_decode, last_rows
from gemma4_runtime.yoco.cut_graph import Cut, LastRows, cut
from gemma4_runtime.yoco.short_prefill import IN_GRAPHS, SKIPPED, UnfinishedChunk, shared_layers, short_prefill, window

OP = "yoco"

_LEAST_BESIDE_GRAPHS = 2048
"""Rows to save with which it is faster than a piecewise CUDA graph of all layers: below, launches bound a prefill, and
a graph has none. On one H200 a graph of 2048 rows was the faster one on E2B. Where graphs can be cut, none is left."""

_CUT = "gemma4_triage_cut"


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


def around_install(
    original: Callable[..., Any], module: Any, *, compile_config: Any, graph_pool: Any, **kwargs: Any
) -> Any:
    """Run around `install_torch_compiled`, by which SGLang's runner has its model compiled for its graphs."""

    def compiled(graph: Any, example_inputs: Any) -> Any:
        # Imported here: its module can be, beside CUDA alone.
        from gemma4_runtime.release import SGLangBackend

        whole = SGLangBackend(compile_config, graph_pool)(graph, example_inputs)
        made = cut(whole)
        if made is None:
            return whole
        # The configuration is the runner's, and of no other one.
        setattr(compile_config, _CUT, made)
        return made

    if isinstance(module, Gemma4TextModel) and shared_layers(module) and switched_on(OP):
        kwargs["backend_factory"] = compiled
    return original(module, compile_config=compile_config, graph_pool=graph_pool, **kwargs)


def around_can_run(original: Callable[..., Any], runner: Any, forward_batch: Any) -> bool:
    """Run around `PiecewiseCudaGraphRunner.can_run`: no long prefill whose graphs run all rows in each layer."""
    can_run = original(runner, forward_batch)
    model = _text_model(runner)
    if not can_run or model is None or _cut_for(runner, forward_batch):
        return can_run
    least = max(_LEAST_BESIDE_GRAPHS, current.settings().yoco_rows)
    return eligible.reason(model, forward_batch, len(forward_batch.input_ids), least) is not None


def around_replay(original: Callable[..., Any], runner: Any, forward_batch: Any, **kwargs: Any) -> Any:
    """Run around `PiecewiseCudaGraphRunner.replay`: with the last rows alone behind the cut, if the batch allows it."""
    model = _text_model(runner)
    made = _cut_for(runner, forward_batch)
    if model is None or made is None or not eligible.is_prefill(forward_batch):
        return original(runner, forward_batch, **kwargs)
    if reason := eligible.reason(model, forward_batch, len(forward_batch.input_ids), current.settings().yoco_rows):
        PATHS.took(OP, reason)
        return original(runner, forward_batch, **kwargs)
    unfinished = isinstance(forward_batch.rids, UnfinishedChunk)
    PATHS.took(OP, SKIPPED if unfinished else IN_GRAPHS)
    rows = last_rows(forward_batch)
    batch = view = None
    if not unfinished:
        first = model.config.num_hidden_layers - shared_layers(model)
        batch, view = as_decode(forward_batch, rows, forward_batch.positions[rows], window(model, first))
    with made.last_rows(LastRows(rows, batch, view)):
        return original(runner, forward_batch, **kwargs)


def _text_model(runner: Any) -> Any:
    """Return the text model of the runner if this patch is in force for it, else None."""
    model = runner.model_runner.model
    model = getattr(model, "language_model", None) or getattr(model, "model", None)
    return model if isinstance(model, Gemma4TextModel) and shared_layers(model) and switched_on(OP) else None


def _cut_for(runner: Any, forward_batch: Any) -> Cut | None:
    """Return the cut graphs of the runner, if some of them can take the last rows of this batch."""
    made: Cut | None = getattr(runner.compile_config, _CUT, None)
    return made if made and made.serves(forward_batch.batch_size, len(forward_batch.input_ids)) else None


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
