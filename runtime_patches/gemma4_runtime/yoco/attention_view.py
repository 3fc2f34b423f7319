"""How the shared layers' attention sees a prefill: as a decode of one token per request, over keys that are all there.

A copy of the attention backend plans that decode. SGLang's own object keeps the plan of the prefill, whose buffers a
second plan would overwrite (Triton) or whose lengths it would replace. A decode asks for no new slot: the layers share
keys and write none.

| backend               | keys of a sliding layer, prefill's last token    | the copy's decode                         |
|-----------------------|--------------------------------------------------|-------------------------------------------|
| Triton                | distance of the layer, itself included: w + 1    | its list is cut to as many                |
| trtllm_mha            | window_left of the layer: w + 1                  | the same window_left                      |
| Hybrid                | those of its prefill backend                     | a copy of that one; else of the decode one|

w is `RadixAttention.sliding_window_size`: W as shipped, W - 1 with swa-window-width, for one key less. A chunk of one
token (a row that decodes in a mixed batch) sees W keys in Triton as shipped, and W + 1 here; with the fix W either way.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from gemma4_runtime.current import switched_on
from gemma4_runtime.release import (
    ForwardMode,
    HybridAttnBackend,
    TritonAttnBackend,
    TRTLLMHAAttnBackend,
    get_attn_backend,
)

_PREFILL_ONLY = (
    "extend_num_tokens",
    "extend_seq_lens",
    "extend_prefix_lens",
    "extend_start_loc",
    "extend_prefix_lens_cpu",
    "extend_seq_lens_cpu",
    "extend_logprob_start_lens_cpu",
)


def attention_reason() -> str | None:
    """Say why the attention backend in force cannot be copied; None if it can."""
    backend = get_attn_backend()
    return f"the attention backend {type(backend).__name__}" if _leaf(backend) is None else None


def last_rows(forward_batch: Any) -> torch.Tensor:
    """[B] int64: the row of each request's last token."""
    return torch.cumsum(forward_batch.extend_seq_lens, dim=0, dtype=torch.int64) - 1


def as_decode(forward_batch: Any, rows: torch.Tensor, positions: torch.Tensor, window: int | None) -> tuple[Any, Any]:
    """Return a plan for short_prefill: the rows as a decode step, and the attention backend's copy that planned it."""
    batch = decode_batch(forward_batch, rows, positions)
    return batch, cross_decoder_view(batch, window)


def decode_batch(forward_batch: Any, rows: torch.Tensor, positions: torch.Tensor) -> Any:
    """Return a copy of the batch that decodes these rows and positions, both [B]; seq_lens count the prompt already."""
    batch = copy.copy(forward_batch)
    batch.forward_mode = ForwardMode.DECODE
    batch.positions = positions
    batch.input_ids = forward_batch.input_ids[rows] if forward_batch.input_ids is not None else None
    batch.out_cache_loc = forward_batch.out_cache_loc[rows]
    batch.seq_lens_sum = int(forward_batch.seq_lens_cpu.sum())
    batch.num_token_non_padded_cpu = batch.batch_size
    for name in _PREFILL_ONLY:
        setattr(batch, name, None)
    return batch


def cross_decoder_view(batch: Any, window: int | None) -> Any:
    """Return a planned copy of the attention backend in force, for `batch`, which decode_batch made.

    The distance to the oldest key that sliding layers see, `RadixAttention.sliding_window_size`, is `window`; None
    without.
    """
    view = backend_copy()
    if isinstance(view, TritonAttnBackend) and view.window_kv_indptr is not None and window is not None:
        # A decode's list is cut to so many keys; triton-decode-window adds one where it is in force.
        view.sliding_window_size = window + 1 - switched_on("triton-decode-window")
    view.init_forward_metadata(batch)
    return view


def backend_copy() -> Any:
    """Return a copy of the attention backend in force, with buffers of its own for what a plan writes in place."""
    view = copy.copy(_leaf(get_attn_backend()))
    if isinstance(view, TritonAttnBackend):
        for name in ("kv_indptr", "qo_indptr", "window_kv_indptr"):
            if (buffer := getattr(view, name, None)) is not None:
                setattr(view, name, torch.zeros_like(buffer))
    return view


def _leaf(backend: Any) -> Any:
    if type(backend) is HybridAttnBackend:
        return _leaf(backend.prefill_backend) or _leaf(backend.decode_backend)
    return backend if type(backend) in (TritonAttnBackend, TRTLLMHAAttnBackend) else None
