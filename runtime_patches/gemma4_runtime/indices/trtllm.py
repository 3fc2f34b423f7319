"""A metadata build of trtllm_mha: the full and the SWA page table, and where new keys and values go."""

from __future__ import annotations

from typing import Any

from gemma4_runtime.indices.buffers import Buffer, buffer_of
from gemma4_runtime.indices.build import Build, IndexArray, Use
from gemma4_runtime.indices.owner import attention_layers, role_of, window_is_strict, writes_kv

BACKEND = "trtllm_mha"
_ATTRIBUTE = "TRTLLMHAAttnBackend.forward_metadata"
_USES = "_gemma4_uses"


def trtllm_build(backend: Any, forward_batch: Any, site: str, in_graph: bool) -> Build:
    """The build that `backend.forward_metadata` holds. The pool in force is the one that the kernels will see."""
    metadata, mode = backend.forward_metadata, forward_batch.forward_mode
    rows = metadata.page_table.shape[0]
    tables = [IndexArray("page_table", metadata.page_table, "full", f"{_ATTRIBUTE}.page_table")]
    if metadata.swa_page_table is not None:
        origin = f"{_ATTRIBUTE}.swa_page_table"
        tables.append(IndexArray("swa_page_table", metadata.swa_page_table, "swa", origin))
    uses = _reads(backend)
    if writes_kv(backend) and forward_batch.out_cache_loc is not None:
        swa_slots = backend.cuda_graph_swa_out_cache_loc if in_graph else metadata.swa_out_cache_loc
        lists = {"out_cache_loc": (forward_batch.out_cache_loc, "full"), "swa_out_cache_loc": (swa_slots, "swa")}
        ragged = not (mode.is_decode_or_idle() or mode.is_target_verify())
        for name, (slots, space) in lists.items():
            if slots is None:
                continue
            origin = f"{_ATTRIBUTE}.{name}" if space == "swa" else "ForwardBatch.out_cache_loc"
            if ragged:
                tables.append(IndexArray(name, slots, space, origin, paged=False, indptr=metadata.cu_seqlens_q))
            elif (tokens := rows * max(metadata.max_seq_len_q, 1)) <= slots.shape[0]:
                # A graph's buffer is longer than its bucket. A shorter list stops SGLang's own write.
                tables.append(IndexArray(name, slots[:tokens].view(rows, -1), space, origin, paged=False))
        uses += _writes(backend, uses, {array.name for array in tables})
    return Build(
        backend=backend,
        backend_name=BACKEND,
        role=role_of(backend),
        site=site,
        forward_mode=mode.name,
        bucket=rows if in_graph else None,
        page_size=backend.page_size,
        arrays=tuple(tables),
        uses=uses,
        pool=backend.token_to_kv_pool,
        cache_seqlens=metadata.cache_seqlens_int32[:rows],
        request_slots=forward_batch.req_pool_indices[:rows],
        query_tokens=int(metadata.max_seq_len_q),
        window_keys=_window_keys(backend, uses, forward_batch),
    )


def use_of(backend: Any, layer: Any) -> Use:
    """Which table `layer` will be given, by the backend's own choice, and which buffer it will index with it."""
    table, pool = _table_of(backend, layer), backend.token_to_kv_pool
    window = -1 if layer.sliding_window_size is None else layer.sliding_window_size
    buffer = buffer_of(pool, layer.layer_id, role_of(backend))
    if buffer is None:
        return Use(table, None, 0, layer.layer_id, window)
    return Use(table, buffer.space, buffer.slots // backend.page_size, layer.layer_id, window)


def _table_of(backend: Any, layer: Any) -> str:
    swa_table = backend.forward_metadata.swa_page_table
    try:
        table = backend._get_layer_page_table(layer, None)
    except KeyError:
        # The layer is not in the pool that the backend translates for. SGLang raises the same at the layer's dispatch.
        return "swa_page_table"
    return "swa_page_table" if swa_table is not None and table is swa_table else "page_table"


def _reads(backend: Any) -> tuple[Use, ...]:
    """One use per pair of table and buffer, with its first layer. Kept for as long as the pools are the same."""
    pool, translates = backend.token_to_kv_pool, backend._swa_kv_pool
    has_swa_table = backend.forward_metadata.swa_page_table is not None
    kept = getattr(backend, _USES, {}).get(has_swa_table)
    if kept is not None and kept[0] is pool and kept[1] is translates:
        return kept[2]
    uses: dict[tuple[Any, ...], Use] = {}
    for layer in attention_layers(backend):
        use = use_of(backend, layer)
        uses.setdefault((use.array, use.buffer_space, use.bound, use.window_left), use)
    vars(backend).setdefault(_USES, {})[has_swa_table] = (pool, translates, found := tuple(uses.values()))
    return found


def _writes(backend: Any, reads: tuple[Use, ...], arrays: set[str]) -> tuple[Use, ...]:
    """Each buffer that is read is written through the list of its own space; without a split there is one list."""
    uses: dict[str, Use] = {}
    for read in reads:
        buffer = None if read.layer_id is None else buffer_of(backend.token_to_kv_pool, read.layer_id, role_of(backend))
        if buffer is not None:
            name = "swa_out_cache_loc" if buffer.space == "swa" and "swa_out_cache_loc" in arrays else "out_cache_loc"
            uses.setdefault(buffer.space, _write(name, buffer, read))
    return tuple(uses.values())


def _write(name: str, buffer: Buffer, read: Use) -> Use:
    return Use(name, buffer.space, buffer.slots, read.layer_id, read.window_left, writes=True)


def _window_keys(backend: Any, uses: tuple[Use, ...], forward_batch: Any) -> int:
    """Keys that a sliding row still needs: its window before its first query, and its queries.

    The release shows its kernels one key more than the window holds (see swa-window-width), and may have let go of that
    one: it does not count. Of rows with different numbers of queries the least demanding one stands for all.
    """
    windows = [use.window_left for use in uses if use.array == "swa_page_table" and use.window_left >= 0]
    if not windows or not window_is_strict(backend):
        return -1
    queries = backend.forward_metadata.max_seq_len_q
    lengths = getattr(forward_batch, "extend_seq_lens_cpu", None)
    mode = forward_batch.forward_mode
    if not (mode.is_decode_or_idle() or mode.is_target_verify()):
        queries = min((int(length) for length in lengths), default=0) if lengths is not None else 0
    return queries + min(windows) - 1
