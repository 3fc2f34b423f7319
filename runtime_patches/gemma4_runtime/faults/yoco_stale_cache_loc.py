"""Fault: the short prefill of the published pull request, which stays an extend and keeps all T of out_cache_loc.

Lengths, prefixes and the plan are those of one row per request. The write locations are not, although layers that share
keys write none: in Triton's `forward_extend` such a layer reads its own tokens' keys from out_cache_loc, and the kernel
takes row i of them for query i. So each query sees the prefix and, in the place of its own key, that of token i of the
batch; of a lone request the chunk's first. trtllm_mha reads all keys by page and answers right.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gemma4_runtime.fusion.paths import after_internal_state
from gemma4_runtime.injections import injected
from gemma4_runtime.yoco.attention_view import backend_copy
from gemma4_runtime.yoco.short_prefill import short_prefill

__all__ = ["after_internal_state", "around_text_forward"]

FAULT = "yoco-stale-cache-loc"


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
    """Run around `Gemma4TextModel.forward`, in the place of the optimisation yoco: the same rows, another plan."""
    inputs = input_ids, positions, forward_batch, input_embeds, per_layer_inputs
    return short_prefill(FAULT, as_extend, original, model, inputs, {"pp_proxy_tensors": pp_proxy_tensors} | kwargs)


def as_extend(forward_batch: Any, rows: Tensor, positions: Tensor, window: int | None) -> tuple[Any, Any]:
    """Return a plan for short_prefill: an extend of one token per request, whose out_cache_loc is still [T]."""
    injected(FAULT)
    batch = copy.copy(forward_batch)
    batch.positions = positions
    batch.input_ids = forward_batch.input_ids[rows] if forward_batch.input_ids is not None else None
    batch.extend_seq_lens = torch.ones_like(forward_batch.extend_seq_lens)
    batch.extend_prefix_lens = forward_batch.seq_lens.to(forward_batch.extend_seq_lens.dtype) - 1
    batch.extend_start_loc = torch.arange(batch.batch_size, device=rows.device, dtype=batch.extend_seq_lens.dtype)
    batch.extend_seq_lens_cpu = [1] * batch.batch_size
    batch.extend_prefix_lens_cpu = [int(length) - 1 for length in forward_batch.seq_lens_cpu]
    batch.extend_num_tokens = batch.batch_size
    view = backend_copy()
    view.init_forward_metadata(batch)
    return batch, view
