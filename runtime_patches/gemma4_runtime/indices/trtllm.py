"""A metadata build of trtllm_mha: the full and the SWA page table, and where new keys and values go."""

from __future__ import annotations

from typing import Any

import torch

from gemma4_runtime.indices.act import act_at
from gemma4_runtime.indices.build import Build, IndexArray, Use
from gemma4_runtime.indices.owner import role_of, window_is_strict, writes_kv
from gemma4_runtime.indices.uses import extends, location_arrays, read_use, read_uses, write_uses
from gemma4_runtime.settings import Mode

BACKEND = "trtllm_mha"
_ATTRIBUTE = "TRTLLMHAAttnBackend.forward_metadata"


def trtllm_build(backend: Any, forward_batch: Any, site: str, in_graph: bool, new_slots: torch.Tensor | None) -> Build:
    """Return the build that `backend.forward_metadata` holds; the pool in force is the one that the kernels will see.

    Args:
        backend: The leaf backend.
        forward_batch: The forward's batch.
        site: The function of SGLang's that built the metadata.
        in_graph: Whether a CUDA graph will read it.
        new_slots: The list that the kernels will read, [tokens or more] full-pool slots.
    """
    metadata, mode = backend.forward_metadata, forward_batch.forward_mode
    rows = metadata.page_table.shape[0]
    tables = [IndexArray("page_table", metadata.page_table, "full", f"{_ATTRIBUTE}.page_table")]
    if metadata.swa_page_table is not None:
        origin = f"{_ATTRIBUTE}.swa_page_table"
        tables.append(IndexArray("swa_page_table", metadata.swa_page_table, "swa", origin))
    choose = lambda backend, layer: use_of(backend, layer, forward_batch)  # noqa: E731
    uses = read_uses(backend, choose, variant=metadata.swa_page_table is not None, holds=(backend._swa_kv_pool,))
    if writes_kv(backend) and new_slots is not None:
        swa_slots = backend.cuda_graph_swa_out_cache_loc if in_graph else metadata.swa_out_cache_loc
        locations = location_arrays(
            new_slots,
            swa_slots,
            f"{_ATTRIBUTE}.swa_out_cache_loc",
            rows,
            max(metadata.max_seq_len_q, 1),
            metadata.cu_seqlens_q if extends(mode) else None,
        )
        tables += locations
        uses += write_uses(backend, uses, locations)
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
        window_keys=_window_keys(backend, uses, forward_batch, not in_graph and act_at(in_graph) is Mode.TRAP),
        # Read later than now they would be the next step's.
        believed_lengths=believed_lengths(backend, forward_batch) if act_at(in_graph) is Mode.TRAP else None,
    )


def believed_lengths(backend: Any, forward_batch: Any) -> torch.Tensor:
    """Return the keys of each row by the batch, int [rows], as the kernels are to be told them, a draft's included."""
    mode, lengths = forward_batch.forward_mode, forward_batch.seq_lens
    if mode.is_target_verify():
        return lengths + forward_batch.input_ids.shape[0] // lengths.shape[0]
    if mode.is_decode() and forward_batch.spec_info is not None:
        return lengths + backend.speculative_step_id + 1
    return lengths


def use_of(backend: Any, layer: Any, forward_batch: Any) -> Use:
    """Say which table `layer` will be given, by the backend's own choice, and which buffer it will index with it."""
    return read_use(backend, layer, _table_of(backend, layer, forward_batch), paged=True)


def _table_of(backend: Any, layer: Any, forward_batch: Any) -> str:
    swa_table = backend.forward_metadata.swa_page_table
    try:
        table = backend._get_layer_page_table(layer, forward_batch)
    except KeyError:
        # The layer is not in the pool that the backend translates for. SGLang raises the same at the layer's dispatch.
        return "swa_page_table"
    return "swa_page_table" if swa_table is not None and table is swa_table else "page_table"


def _window_keys(backend: Any, uses: tuple[Use, ...], forward_batch: Any, at_once: bool) -> int:
    """Keys that a sliding row still needs: its window before its first query, and its queries.

    The release shows its kernels one key more than the window holds (see swa-window-width), and may have let go of that
    one: it does not count. Of rows with different numbers of queries the least demanding one stands for all.
    """
    windows = [use.window_left for use in uses if use.array == "swa_page_table" and use.window_left >= 0]
    if not windows or not window_is_strict(backend, at_once):
        return -1
    queries = backend.forward_metadata.max_seq_len_q
    lengths = getattr(forward_batch, "extend_seq_lens_cpu", None)
    if extends(forward_batch.forward_mode):
        queries = min((int(length) for length in lengths), default=0) if lengths is not None else 0
    return queries + min(windows) - 1
