"""Which layers follow which array, and where new keys and values go: what every attention backend has in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gemma4_runtime.indices.buffers import buffer_of
from gemma4_runtime.indices.build import IndexArray, Use
from gemma4_runtime.indices.owner import attention_layers, role_of

FULL_LOCATIONS, SWA_LOCATIONS = "out_cache_loc", "swa_out_cache_loc"
_KEPT = "_gemma4_uses"


def extends(mode: Any) -> bool:
    """Say whether rows have as many queries as they like: an extend, but not a verify."""
    return not (mode.is_decode_or_idle() or mode.is_target_verify())


def read_use(backend: Any, layer: Any, array: str, paged: bool) -> Use:
    """`layer` follows `array` into its buffer in the pool in force; ids are pages if `paged`, else token slots."""
    window = -1 if layer.sliding_window_size is None else layer.sliding_window_size
    buffer = buffer_of(backend.token_to_kv_pool, layer.layer_id, role_of(backend))
    if buffer is None:
        return Use(array, None, 0, layer.layer_id, window)
    bound = buffer.slots // backend.page_size if paged else buffer.slots
    return Use(array, buffer.space, bound, layer.layer_id, window)


def read_uses(
    backend: Any, use_of: Callable[[Any, Any], Use], variant: Any = None, holds: tuple[Any, ...] = ()
) -> tuple[Use, ...]:
    """Return one use per pair of array and buffer, with its first layer. Kept for as long as the pools are the same.

    `variant` is the kind of build, where the choice of array goes by it; `holds` is what else the choice goes by, by
    identity.
    """
    holds = (backend.token_to_kv_pool, *holds)
    kept = vars(backend).setdefault(_KEPT, {}).get(variant)
    if kept is not None and all(old is new for old, new in zip(kept[0], holds, strict=True)):
        return kept[1]
    uses: dict[tuple[Any, ...], Use] = {}
    for layer in attention_layers(backend):
        use = use_of(backend, layer)
        uses.setdefault((use.array, use.buffer_space, use.bound, use.window_left), use)
    getattr(backend, _KEPT)[variant] = (holds, found := tuple(uses.values()))
    return found


def write_uses(backend: Any, reads: tuple[Use, ...], arrays: tuple[IndexArray, ...]) -> tuple[Use, ...]:
    """Return the uses through which buffers are written: through the list of their own space, or the one list.

    There is one list without a split; every buffer that is read is written.
    """
    names = {array.name for array in arrays}
    uses: dict[str, Use] = {}
    for read in reads:
        buffer = None if read.layer_id is None else buffer_of(backend.token_to_kv_pool, read.layer_id, role_of(backend))
        if buffer is not None:
            name = SWA_LOCATIONS if buffer.space == "swa" and SWA_LOCATIONS in names else FULL_LOCATIONS
            write = Use(name, buffer.space, buffer.slots, read.layer_id, read.window_left, writes=True)
            uses.setdefault(buffer.space, write)
    return tuple(use for use in uses.values() if use.array in names)


def location_arrays(
    full: torch.Tensor,
    swa: torch.Tensor | None,
    swa_origin: str,
    rows: int,
    per_row: int,
    indptr: torch.Tensor | None,
) -> tuple[IndexArray, ...]:
    """Return the lists of new slots, as full-pool ids and as SWA ids, where a backend has both.

    full, swa: [tokens or more]. per_row: tokens of each row, unless `indptr` [> rows] says where rows begin and end.
    """
    arrays = []
    for name, slots, space in ((FULL_LOCATIONS, full, "full"), (SWA_LOCATIONS, swa, "swa")):
        if slots is None:
            continue
        origin = swa_origin if space == "swa" else "ForwardBatch.out_cache_loc"
        # A token that the window has left, or that a tail allocation left out, has no SWA slot.
        may_be_null = space == "swa"
        if indptr is not None:
            arrays.append(IndexArray(name, slots, space, origin, False, indptr, may_be_null))
        elif (tokens := rows * per_row) <= slots.shape[0]:
            # A graph's buffer is longer than its bucket. A shorter list stops SGLang's own write.
            arrays.append(IndexArray(name, slots[:tokens].view(rows, per_row), space, origin, False, None, may_be_null))
    return tuple(arrays)
