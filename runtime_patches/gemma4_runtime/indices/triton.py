"""A metadata build of Triton attention: ragged lists of token slots, and where new keys and values go.

A layer with a window follows the window's list, the others the full one. In an extend, a layer that is given no keys
gathers them through the list of new slots of its buffer's space: that list is checked for the layer that writes through
it, whose buffer is the same, and at dispatch where no layer of the backend writes.

SGLang translates that list once more for a sliding layer that gathers. So in contain mode a bad id of the full list is
neutralised for it too, but not an entry of the full-to-SWA map that leads out of the SWA buffer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from gemma4_runtime.indices.build import Build, IndexArray, Use
from gemma4_runtime.indices.owner import role_of, rows_per_request, window_is_strict, writes_kv
from gemma4_runtime.indices.uses import FULL_LOCATIONS, SWA_LOCATIONS, location_arrays, read_use, read_uses, write_uses

BACKEND = "triton"
FULL_LIST, WINDOW_LIST = "kv_indices", "window_kv_indices"
_EAGER, _GRAPH = "TritonAttnBackend.forward_metadata.", "TritonAttnBackend.cuda_graph_"


def has_lists_of_its_own(forward_batch: Any, in_capture: bool = False) -> bool:
    """False for a step of TritonMultiStepDraftBackend: its lists come with the batch, for all steps at once."""
    spec_info = forward_batch.spec_info
    if not forward_batch.forward_mode.is_decode_or_idle() or spec_info is None:
        return True
    return not in_capture and spec_info.kv_indptr is None


def triton_build(backend: Any, forward_batch: Any, site: str, in_graph: bool) -> Build:
    """The build that the kernels will see: `forward_metadata`'s, or at replay, where that is a capture's, the buffers'.

    The pool in force translates the window's list if it can, as `update_sliding_window_buffer` does.
    """
    metadata, mode, pool = backend.forward_metadata, forward_batch.forward_mode, backend.token_to_kv_pool
    rows = forward_batch.batch_size if in_graph else metadata.kv_indptr.shape[0] - 1
    lists = _graph_lists(backend, rows, mode) if in_graph else _eager_lists(metadata)
    window_space = "swa" if hasattr(pool, "translate_loc_from_full_to_swa") else "full"
    # With overlap the request may have ended meanwhile, and with it its SWA slots.
    may_be_null = window_space == "swa" and not window_is_strict(backend)
    spaces = {FULL_LIST: ("full", False), WINDOW_LIST: (window_space, may_be_null)}
    origin = _GRAPH if in_graph else _EAGER
    arrays = tuple(
        IndexArray(name, slots, spaces[name][0], origin + name, False, indptr, spaces[name][1])
        for name, (slots, indptr) in lists.items()
    )
    names = tuple(lists)
    reads = tuple(use for use in read_uses(backend, use_of, variant=names) if use.array in names)
    per_row = 1 if mode.is_decode_or_idle() else backend.num_draft_tokens
    ragged = not (mode.is_decode_or_idle() or mode.is_target_verify())
    locations: tuple[IndexArray, ...] = ()
    if forward_batch.out_cache_loc is not None and (writes_kv(backend) or not mode.is_decode_or_idle()):
        locations = location_arrays(
            forward_batch.out_cache_loc,
            _swa_locations(backend, in_graph),
            f"{origin}{SWA_LOCATIONS}",
            rows,
            per_row,
            (backend.qo_indptr[: rows + 1] if in_graph else metadata.qo_indptr) if ragged else None,
        )
    return Build(
        backend=backend,
        backend_name=BACKEND,
        role=role_of(backend),
        site=site,
        forward_mode=mode.name,
        bucket=rows if in_graph else None,
        page_size=pool.page_size,
        arrays=arrays + locations,
        uses=reads + (write_uses(backend, reads, locations) if writes_kv(backend) else ()),
        pool=pool,
        cache_seqlens=forward_batch.seq_lens[:rows],
        request_slots=forward_batch.req_pool_indices[:rows],
        query_tokens=int((None if in_graph else metadata.max_extend_len) or per_row),
        rows_per_request=rows_per_request(backend, mode),
    )


def use_of(backend: Any, layer: Any) -> Use:
    """Which list `layer` will be given, by the backend's own choice, and which buffer it will index with it."""
    slides = layer.sliding_window_size is not None and layer.sliding_window_size > -1
    return read_use(backend, layer, WINDOW_LIST if slides else FULL_LIST, paged=False)


def gather_of(backend: Any, layer: Any) -> Use:
    """How `layer` reads the new keys of an extend that it is not given."""
    use = read_use(backend, layer, FULL_LOCATIONS, paged=False)
    return replace(use, array=SWA_LOCATIONS) if use.buffer_space == "swa" else use


def _eager_lists(metadata: Any) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    lists = {FULL_LIST: (metadata.kv_indices, metadata.kv_indptr)}
    if metadata.window_kv_indices is not None:
        lists[WINDOW_LIST] = (metadata.window_kv_indices, metadata.window_kv_indptr)
    return lists


def _graph_lists(backend: Any, rows: int, mode: Any) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    lists = {FULL_LIST: (backend.cuda_graph_kv_indices, backend.kv_indptr[: rows + 1])}
    # A draft's extend fills no window list, and gives its graph none.
    if backend.window_kv_indptr is not None and (mode.is_decode_or_idle() or mode.is_target_verify()):
        lists[WINDOW_LIST] = (backend.cuda_graph_window_kv_indices, backend.window_kv_indptr[: rows + 1])
    return lists


def _swa_locations(backend: Any, in_graph: bool) -> torch.Tensor | None:
    if not backend.use_sliding_window_kv_pool:
        return None
    return backend.cuda_graph_swa_out_cache_loc if in_graph else backend.forward_metadata.swa_out_cache_loc
