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
from gemma4_runtime.indices.owner import window_is_strict
from gemma4_runtime.indices.slot_lists import FULL_LIST, WINDOW_LIST, NewSlots, slot_list_build, swa_locations
from gemma4_runtime.indices.uses import FULL_LOCATIONS, SWA_LOCATIONS, extends, read_use

BACKEND = "triton"
_EAGER, _GRAPH = "TritonAttnBackend.forward_metadata.", "TritonAttnBackend.cuda_graph_"


def has_lists_of_its_own(forward_batch: Any, in_capture: bool = False) -> bool:
    """Return False for a step of TritonMultiStepDraftBackend: its lists come with the batch, for all steps at once."""
    spec_info = forward_batch.spec_info
    if not forward_batch.forward_mode.is_decode_or_idle() or spec_info is None:
        return True
    return not in_capture and spec_info.kv_indptr is None


def triton_build(backend: Any, forward_batch: Any, site: str, in_graph: bool, new_slots: torch.Tensor | None) -> Build:
    """Return the build that kernels will see: `forward_metadata`'s, or the buffers' at replay if that is a capture's.

    The pool in force translates the window's list if it can, as `update_sliding_window_buffer` does.
    """
    metadata, mode = backend.forward_metadata, forward_batch.forward_mode
    rows, origin = forward_batch.batch_size, _GRAPH if in_graph else _EAGER
    if in_graph:
        full, window = _graph_lists(backend, rows, mode)
    else:
        full = (metadata.kv_indices, metadata.kv_indptr)
        window = (metadata.window_kv_indices, metadata.window_kv_indptr)
    lists = [IndexArray(FULL_LIST, full[0], "full", f"{origin}{FULL_LIST}", paged=False, indptr=full[1])]
    if window[0] is not None:
        space = "swa" if hasattr(backend.token_to_kv_pool, "translate_loc_from_full_to_swa") else "full"
        # With overlap the request may have ended meanwhile, and with it its SWA slots.
        may_be_null = space == "swa" and not window_is_strict(backend)
        lists.append(IndexArray(WINDOW_LIST, window[0], space, f"{origin}{WINDOW_LIST}", False, window[1], may_be_null))
    query_indptr = None
    if extends(mode):
        query_indptr = backend.qo_indptr[: rows + 1] if in_graph else metadata.qo_indptr
    new = NewSlots(
        full=new_slots,
        swa=swa_locations(backend, in_graph),
        swa_origin=f"{origin}{SWA_LOCATIONS}",
        per_row=1 if mode.is_decode_or_idle() else backend.num_draft_tokens or 1,
        query_indptr=query_indptr,
    )
    return slot_list_build(backend, BACKEND, forward_batch, site, tuple(lists), use_of, new, in_graph)


def use_of(backend: Any, layer: Any) -> Use:
    """Say which list `layer` will be given, by the backend's own choice, and which buffer it will index with it."""
    slides = layer.sliding_window_size is not None and layer.sliding_window_size > -1
    return read_use(backend, layer, WINDOW_LIST if slides else FULL_LIST, paged=False)


def gather_of(backend: Any, layer: Any) -> Use:
    """Say how `layer` reads the new keys of an extend that it is not given."""
    use = read_use(backend, layer, FULL_LOCATIONS, paged=False)
    return replace(use, array=SWA_LOCATIONS) if use.buffer_space == "swa" else use


def _graph_lists(backend: Any, rows: int, mode: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    full = (backend.cuda_graph_kv_indices, backend.kv_indptr[: rows + 1])
    # A draft's extend fills no window list, and gives its graph none.
    if backend.window_kv_indptr is None or extends(mode):
        return full, (None, None)
    return full, (backend.cuda_graph_window_kv_indices, backend.window_kv_indptr[: rows + 1])
