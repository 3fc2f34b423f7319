"""A metadata build of a backend that follows ragged lists of token slots: one for full layers, one for the window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from gemma4_runtime.indices.build import Build, IndexArray, Use
from gemma4_runtime.indices.owner import role_of, rows_per_request, writes_kv
from gemma4_runtime.indices.uses import location_arrays, read_uses, write_uses

FULL_LIST, WINDOW_LIST = "kv_indices", "window_kv_indices"


class NewSlots(NamedTuple):
    """Where new keys go, in the lists that the kernels will read.

    Attributes:
        full, swa: as ids of these pools, [tokens or more] or None; `swa_origin` holds the latter.
        per_row: tokens of each row.
        query_indptr: [rows + 1], where rows begin and end in an extend, else None.
    """

    full: torch.Tensor | None
    swa: torch.Tensor | None
    swa_origin: str
    per_row: int
    query_indptr: torch.Tensor | None


def slot_list_build(
    backend: Any,
    backend_name: str,
    forward_batch: Any,
    site: str,
    lists: tuple[IndexArray, ...],
    use_of: Callable[[Any, Any], Use],
    new: NewSlots,
    in_graph: bool,
) -> Build:
    """lists: with an indptr of [rows + 1] each, the full list first. Layers of a missing list are left out."""
    mode, pool, locations = forward_batch.forward_mode, backend.token_to_kv_pool, new.full
    indptr = lists[0].indptr
    assert indptr is not None
    rows, names = indptr.shape[0] - 1, tuple(array.name for array in lists)
    reads = tuple(use for use in read_uses(backend, use_of, variant=names) if use.array in names)
    arrays, writes = lists, ()
    # What a decode does not write nobody reads; in an extend, a layer that is given no keys may.
    if locations is not None and (writes_kv(backend) or not mode.is_decode_or_idle()):
        slots = location_arrays(locations, new.swa, new.swa_origin, rows, new.per_row, new.query_indptr)
        arrays += slots
        writes = write_uses(backend, reads, slots) if writes_kv(backend) else ()
    return Build(
        backend=backend,
        backend_name=backend_name,
        role=role_of(backend),
        site=site,
        forward_mode=mode.name,
        bucket=rows if in_graph else None,
        page_size=pool.page_size,
        arrays=arrays,
        uses=reads + writes,
        pool=pool,
        cache_seqlens=forward_batch.seq_lens[:rows],
        request_slots=forward_batch.req_pool_indices[:rows],
        query_tokens=new.per_row,
        rows_per_request=rows_per_request(backend, mode),
    )


def swa_locations(backend: Any, in_graph: bool) -> torch.Tensor | None:
    """Return the list of new slots as ids of the SWA pool, [tokens or more]; None where the backend keeps none."""
    if not backend.use_sliding_window_kv_pool:
        return None
    return backend.cuda_graph_swa_out_cache_loc if in_graph else backend.forward_metadata.swa_out_cache_loc
