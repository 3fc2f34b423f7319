"""Reference paged attention in fp32 torch, in place of FlashInfer's trtllm-gen kernels, with a model of the device.

Keyword names and layouts are those of `flashinfer.decode.trtllm_batch_decode_with_kv_cache` and
`flashinfer.prefill.trtllm_batch_context_with_kv_cache` (FlashInfer 0.6.12 documentation), as SGLang calls them:

    query         [tokens, q_heads, head_dim]
    kv_cache      (k, v), each [pages, kv_heads, page_size, head_dim], any strides
    block_tables  [requests, columns] int32 page ids; columns past a request's last page hold anything
    seq_lens      [requests] int32, keys per request, the queries' own keys included
    window_left   keys at distance <= window_left are visible; -1 for no window

Like the kernels, it reads only pages that hold visible keys. What an out-of-range page does is the device model's:

    sm100   raises IllegalAddress, as Blackwell's TMA loads fault asynchronously
    sm90    returns whatever lies at that address, as Hopper's XQA kernel was measured to do; past the end of the
            memory that the buffer shares with its neighbours it raises IllegalAddress too
"""

from __future__ import annotations

import os
from functools import lru_cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch

from gemma4_runtime.settings import DeviceModel, read_settings


class IllegalAddress(RuntimeError):
    """The host engine's form of `CUDA error: an illegal memory access was encountered`."""


def _device_model() -> DeviceModel:
    return _read_device_model(os.environ.get("GEMMA4_TRIAGE_DEVICE_MODEL"))


@lru_cache
def _read_device_model(raw: str | None) -> DeviceModel:
    """Returns the device model; settings are parsed once per value, not once per attention call."""
    return read_settings().device_model


def _gather_pages(cache: torch.Tensor, pages: torch.Tensor, model: DeviceModel) -> torch.Tensor:
    """Read `pages` [n] of cache [pages, kv_heads, page_size, head_dim] -> [n, kv_heads, page_size, head_dim].

    Raises:
        IllegalAddress: a page lies outside the buffer (sm100) or outside the memory around it (sm90).
    """
    outside = (pages < 0) | (pages >= cache.shape[0])
    if not bool(outside.any()):
        return cache[pages]
    bad = sorted(set(pages[outside].tolist()))
    report = f"an illegal memory access was encountered: page {bad[0]} of {cache.shape[0]} (host engine, {model.value})"
    if model is DeviceModel.SM100:
        raise IllegalAddress(report)
    memory = torch.empty(0, dtype=cache.dtype, device=cache.device).set_(cache.untyped_storage())
    inner = torch.zeros(cache.shape[1:], dtype=torch.int64)
    for dim, (size, stride) in enumerate(zip(cache.shape[1:], cache.stride()[1:], strict=True)):
        shape = [1] * inner.dim()
        shape[dim] = size
        inner = inner + (torch.arange(size) * stride).view(shape)
    address = int(cache.storage_offset()) + pages.view(-1, 1, 1, 1) * cache.stride(0) + inner
    if int(address.min()) < 0 or int(address.max()) >= memory.numel():
        raise IllegalAddress(report + ", beyond the memory around the buffer")
    return memory[address]


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    key_position: torch.Tensor,
    query_position: torch.Tensor,
    scale: float,
    window_left: int,
) -> torch.Tensor:
    """Softmax attention in fp32 with grouped query heads.

    query [requests, queries, q_heads, d]; keys, values [requests, keys, kv_heads, d]; key_position [requests, keys];
    query_position [requests, queries]; a key is visible if 0 <= query - key (<= window_left). A query that sees
    nothing (padding) gives zeros. Returns [requests, queries, q_heads, d] fp32.
    """
    group = query.shape[2] // keys.shape[2]
    grouped = query.float().unflatten(2, (keys.shape[2], group))
    scores = torch.einsum("rqhgd,rkhd->rhgqk", grouped, keys.float()) * scale
    distance = query_position[:, :, None] - key_position[:, None, :]
    visible = distance >= 0
    if window_left >= 0:
        visible &= distance <= window_left
    hidden = ~visible[:, None, None]
    weights = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1).masked_fill(hidden, 0.0)
    return torch.einsum("rhgqk,rkhd->rqhgd", weights, values.float()).flatten(2, 3)


def _attend_uniform(
    query: torch.Tensor,
    kv_cache: tuple[torch.Tensor, torch.Tensor],
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    window_left: int,
    model: DeviceModel,
) -> torch.Tensor:
    """Attends from the last tokens of each request, as many of each: query is [requests, queries, q_heads, d]."""
    k_cache, v_cache = kv_cache
    requests, queries = query.shape[:2]
    page_size = k_cache.shape[2]
    lens = seq_lens.to(torch.int64)
    first_query = lens - queries
    first_key = (first_query - window_left).clamp(min=0) if window_left >= 0 else torch.zeros_like(lens)
    first_page = first_key // page_size
    columns = int((-(-lens // page_size) - first_page).max())
    column = first_page[:, None] + torch.arange(columns)
    live = column * page_size < lens[:, None]
    # Columns past the end are never read; page 0 stands there only to keep the gather rectangular.
    pages = block_tables.gather(1, column.clamp(max=block_tables.shape[1] - 1)).to(torch.int64).where(live, 0)
    shape = (requests, columns * page_size, k_cache.shape[1], k_cache.shape[3])
    keys = _gather_pages(k_cache, pages.reshape(-1), model).transpose(1, 2).reshape(shape)
    values = _gather_pages(v_cache, pages.reshape(-1), model).transpose(1, 2).reshape(shape)
    key_position = (column[:, :, None] * page_size + torch.arange(page_size)).flatten(1)
    query_position = first_query[:, None] + torch.arange(queries)
    return _attend(query, keys, values, key_position, query_position, scale, window_left)


def _refuse(**unsupported: Any) -> None:
    asked = [name for name, value in unsupported.items() if value is not None]
    if asked:
        raise NotImplementedError(f"the host engine's attention has no {', '.join(asked)}")


def trtllm_batch_decode_with_kv_cache(
    *,
    query: torch.Tensor,
    kv_cache: tuple[torch.Tensor, torch.Tensor],
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    bmm1_scale: float,
    bmm2_scale: float,
    window_left: int = -1,
    sinks: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    q_len_per_req: int = 1,
    skip_softmax_threshold_scale_factor: float | None = None,
    workspace_buffer: torch.Tensor | None = None,
    max_seq_len: int | None = None,
    out: torch.Tensor | None = None,
    kv_cache_sf: Any = None,
    mask: torch.Tensor | None = None,
    multi_ctas_kv_counter_buffer: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decode (one query per request) and target verify (`q_len_per_req` queries). Returns [tokens, q_heads, head_dim].

    Raises:
        IllegalAddress: see the device model.
        NotImplementedError: sinks, skip-softmax, an output of the caller's, scales of quantised keys, or a mask.
    """
    _refuse(sinks=sinks, skip_softmax_threshold=skip_softmax_threshold_scale_factor or None)
    _refuse(out=out, kv_cache_sf=kv_cache_sf, mask=mask)
    grouped = query.unflatten(0, (-1, q_len_per_req))
    out = _attend_uniform(grouped, kv_cache, block_tables, seq_lens, bmm1_scale, window_left, _device_model())
    return (out.flatten(0, 1) * bmm2_scale).to(out_dtype or query.dtype)


def trtllm_batch_context_with_kv_cache(
    *,
    query: torch.Tensor,
    kv_cache: tuple[torch.Tensor, torch.Tensor],
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    bmm1_scale: float,
    bmm2_scale: float,
    cum_seq_lens_q: torch.Tensor,
    window_left: int = -1,
    sinks: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    skip_softmax_threshold_scale_factor: float | None = None,
    workspace_buffer: torch.Tensor | None = None,
    max_q_len: int | None = None,
    max_kv_len: int | None = None,
    batch_size: int | None = None,
    cum_seq_lens_kv: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    kv_cache_sf: Any = None,
    causal: bool = True,
    multi_ctas_kv_counter_buffer: torch.Tensor | None = None,
) -> torch.Tensor:
    """Prefill: request r's queries are rows cum_seq_lens_q[r] to cum_seq_lens_q[r+1]. Returns like `query`.

    Raises:
        IllegalAddress: see the device model.
        NotImplementedError: sinks, skip-softmax, scales of quantised keys, or attention to later tokens.
    """
    _refuse(sinks=sinks, skip_softmax_threshold=skip_softmax_threshold_scale_factor or None)
    _refuse(kv_cache_sf=kv_cache_sf, attention_to_later_tokens=None if causal else True)
    model = _device_model()
    out = torch.zeros(query.shape, dtype=out_dtype or query.dtype) if out is None else out.zero_()
    bounds = cum_seq_lens_q.tolist()
    for row, (start, stop) in enumerate(pairwise(bounds)):
        if stop > start:
            one = _attend_uniform(
                query[start:stop][None],
                kv_cache,
                block_tables[row : row + 1],
                seq_lens[row : row + 1],
                bmm1_scale,
                window_left,
                model,
            )
            out[start:stop] = (one[0] * bmm2_scale).to(out.dtype)
    return out


flashinfer = SimpleNamespace(
    decode=SimpleNamespace(trtllm_batch_decode_with_kv_cache=trtllm_batch_decode_with_kv_cache),
    prefill=SimpleNamespace(trtllm_batch_context_with_kv_cache=trtllm_batch_context_with_kv_cache),
)


def make_counter_buffer(device: torch.device, num_q_heads: int, max_batch_size: int) -> torch.Tensor:
    """Returns one byte that nothing reads, in the place of the zeroed counters that trtllm-gen's blocks share, uint8.

    How many counters a kernel needs depends on the device, and here there is none.
    """
    return torch.zeros(1, dtype=torch.uint8, device=device)
