"""Fixes: sliding layers see exactly W keys, the query's own included, as in transformers.

Not defaults: they change what a server of this release says once a sequence passes the window.

swa-window-width: `Gemma4Attention` hands `sliding_window` (W) to the attention layer, where kernels expect the distance
to the oldest visible key, W - 1; trtllm_mha then sees W + 1 keys. Fixed upstream in 0.5.23.

triton-decode-window: `TritonAttnBackend.sliding_window_size` is the distance to the oldest visible key, W - 1. Triton's
extend kernel masks by that distance, so the first query after a prefix finds W - 1 older keys in its list and adds its
own: W. A decode has written its own key before the list is built, and still takes min(seq_len, W - 1): one key too few,
as soon as the sequence holds W tokens. Target verify goes through the extend kernel and is right, so a server with MTP
and one without answer differently. Still so in 0.5.23.

| site                        | who reads `sliding_window_size`           | with this fix                              |
|-----------------------------|-------------------------------------------|--------------------------------------------|
| init_forward_metadata       | the eager list of a decode, of a draft    | W keys; of an extend or a verify, as before|
| _update_decode_kv_buffers   | the same list at capture and replay       | W keys                                     |
| init_cuda_graph_state       | sizes the static buffer of these lists    | room for W keys in each row of a full batch|

SGLang evicts SWA pages for a window of W keys, so the key that comes back is still there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def narrow_window(result: Any, attention: Any, *args: Any, **kwargs: Any) -> None:
    """Run after `Gemma4Attention.__init__`: W becomes W - 1 on sliding layers; full layers have none."""
    if attention.sliding_window is not None:
        attention.attn.sliding_window_size = attention.sliding_window - 1


def around_init_metadata(original: Callable[..., Any], backend: Any, forward_batch: Any) -> Any:
    """Run around the eager build: what a decode's list of keys is cut to."""
    if not forward_batch.forward_mode.is_decode_or_idle():
        return original(backend, forward_batch)
    with _one_key_more(backend):
        return original(backend, forward_batch)


def around_decode_buffers(original: Callable[..., Any], backend: Any, *args: Any, **kwargs: Any) -> Any:
    """Run around the build for a CUDA graph, at capture and at each replay."""
    with _one_key_more(backend):
        return original(backend, *args, **kwargs)


def around_graph_state(original: Callable[..., Any], backend: Any, *args: Any, **kwargs: Any) -> Any:
    """Run around the allocation of the static buffers, which would end one key per row too early."""
    with _one_key_more(backend):
        return original(backend, *args, **kwargs)


@contextmanager
def _one_key_more(backend: Any) -> Iterator[None]:
    """Make the backend's distance a count of keys: W - 1 becomes W. A backend without a window stays as it is."""
    distance = backend.sliding_window_size
    if distance is None or distance <= 0:
        yield
        return
    backend.sliding_window_size = distance + 1
    try:
        yield
    finally:
        backend.sliding_window_size = distance
