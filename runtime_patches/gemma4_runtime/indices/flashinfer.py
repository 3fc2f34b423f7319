"""A metadata build of FlashInfer: the lists that its wrappers keep of a plan, and where new keys and values go.

A plan leaves in a wrapper the tensors that its kernels will read: `_paged_kv_indices_buf`, token slots, since SGLang
plans with pages of one token, and `_paged_kv_indptr_buf`. They lie on the device and are read at each run, so what is
neutralised there never reaches a kernel; the plan itself goes by lengths alone. With a window there are two wrappers,
the sliding layers' first; on 0.5.13.post1 a verify then fails in SGLang's own updater, which subtracts a prefix length
of None. 0.5.23 lists as many slots as the window has, and from the row's first token on, because what makes a verify's
list is not told where the window begins: what such layers read is wrong, and lies in the pool, so nothing is reported.
"""

from __future__ import annotations

from typing import Any

import torch

from gemma4_runtime.indices.build import Build, IndexArray, Use
from gemma4_runtime.indices.owner import window_is_strict
from gemma4_runtime.indices.slot_lists import FULL_LIST, WINDOW_LIST, NewSlots, slot_list_build, swa_locations
from gemma4_runtime.indices.uses import extends, read_use
from gemma4_runtime.release.allocators import lists_swa_slots

BACKEND = "flashinfer"
_SWA_ORIGIN = "FlashInferAttnBackend.forward_metadata.swa_out_cache_loc"


def is_covered(backend: Any, forward_batch: Any) -> bool:
    """Return False for what Gemma-4 does not do.

    That is an encoder's attention, and a step of FlashInferMultiStepDraftBackend, whose lists come with the batch for
    all steps at once.
    """
    from gemma4_runtime.release import WrapperDispatch

    from_batch = forward_batch.forward_mode.is_decode_or_idle() and forward_batch.spec_info is not None
    return backend.dispatch_reason != WrapperDispatch.CROSS_ATTENTION and not from_batch


def flashinfer_build(
    backend: Any, forward_batch: Any, site: str, in_graph: bool, new_slots: torch.Tensor | None
) -> Build:
    """Return the build that the kernels will see: `forward_metadata`'s wrappers', or in a graph those of its bucket.

    The decode and prefill updaters translate the first wrapper's list where they hold what has two pools.
    """
    mode = forward_batch.forward_mode
    decodes = mode.is_decode_or_idle()
    wrappers = _wrappers(backend, forward_batch, decodes, in_graph)
    lists = [_list(FULL_LIST, wrappers[-1], "full", False)]
    if len(wrappers) > 1:
        updater = backend.indices_updater_decode if decodes else backend.indices_updater_prefill
        space = "swa" if lists_swa_slots(updater) else "full"
        # With overlap the request may have ended meanwhile, and with it its SWA slots.
        may_be_null = space == "swa" and not window_is_strict(backend)
        lists.append(_list(WINDOW_LIST, wrappers[0], space, may_be_null))
    new = NewSlots(
        full=new_slots,
        swa=swa_locations(backend, in_graph),
        swa_origin=_SWA_ORIGIN,
        per_row=forward_batch.spec_info.draft_token_num if mode.is_target_verify() else 1,
        query_indptr=wrappers[-1]._qo_indptr_buf if extends(mode) else None,
    )
    return slot_list_build(backend, BACKEND, forward_batch, site, tuple(lists), use_of, new, in_graph)


def use_of(backend: Any, layer: Any) -> Use:
    """Say which wrapper `layer` will be given, by the backend's own choice, and which buffer its list will index."""
    full = backend.num_wrappers == 1 or bool(backend._get_wrapper_idx(layer))
    return read_use(backend, layer, FULL_LIST if full else WINDOW_LIST, paged=False)


def _wrappers(backend: Any, forward_batch: Any, decodes: bool, in_graph: bool) -> list[Any]:
    if in_graph:
        kept = backend.decode_cuda_graph_metadata if decodes else backend.prefill_cuda_graph_metadata
        return kept[forward_batch.batch_size]
    metadata = backend.forward_metadata
    return metadata.decode_wrappers if decodes else metadata.prefill_wrappers


def _list(name: str, wrapper: Any, space: str, may_be_null: bool) -> IndexArray:
    origin = f"{type(wrapper).__name__}._paged_kv_indices_buf"
    slots, indptr = wrapper._paged_kv_indices_buf, wrapper._paged_kv_indptr_buf
    return IndexArray(name, slots, space, origin, False, indptr, may_be_null)
