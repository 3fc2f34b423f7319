"""Which buffer a layer reads and writes, and how long it is. Host only: no tensor's values are touched."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

_SLOTS_HEADS_DIM = 3


class Buffer(NamedTuple):
    """space: full, swa or draft. slots: token slots in it, the dummy page 0 included."""

    space: str
    slots: int


def buffer_of(pool: Any, layer_id: int, role: str | None) -> Buffer | None:
    """Return the key buffer of `layer_id` in `pool`, or None if the pool has no such layer.

    SGLang's own accessor is not asked: with a hierarchical cache it waits for the layer's transfer.
    """
    place = _place_of(pool, layer_id)
    if place is None:
        return None
    inner, index, space = place
    return Buffer(space or ("draft" if role == "draft" else "full"), slots_of(inner.k_buffer[index], inner.page_size))


def slots_of(keys: torch.Tensor, page_size: int) -> int:
    """Return how many token slots a layer's buffer has.

    Args:
        keys: [slots, heads, head_dim], or by pages, [pages, heads, page_size, head_dim], as with 0.5.23's
            SGLANG_USE_HND_KVCACHE, or with five dimensions.
        page_size: Tokens of a page.
    """
    return int(keys.shape[0]) * (int(page_size) if keys.ndim > _SLOTS_HEADS_DIM else 1)


class LayerBuffers(NamedTuple):
    """keys, values: [slots, heads, head_dim], or by pages. dtype: of what is stored; the storage may be bytes."""

    keys: torch.Tensor
    values: torch.Tensor
    dtype: torch.dtype


def layer_buffers(pool: Any, layer_id: int) -> LayerBuffers | None:
    """Keys and values of `layer_id` in `pool`, or None if the pool has no such layer."""
    place = _place_of(pool, layer_id)
    if place is None:
        return None
    inner, index, _ = place
    return LayerBuffers(inner.k_buffer[index], inner.v_buffer[index], inner.dtype)


def _place_of(pool: Any, layer_id: int) -> tuple[Any, int, str | None] | None:
    """Return the pool with the layer's buffers, their place in it, and its space: full or swa; None without a split."""
    from gemma4_runtime.release import SWAKVPool

    if isinstance(pool, SWAKVPool):
        if layer_id not in pool.layers_mapping:
            return None
        index, is_swa = pool.layers_mapping[layer_id]
        return (pool.swa_kv_pool, index, "swa") if is_swa else (pool.full_kv_pool, index, "full")
    index = layer_id - getattr(pool, "start_layer", 0)
    return (pool, index, None) if 0 <= index < len(pool.k_buffer) else None


def extents(pool: Any, page_size: int) -> dict[str, int]:
    """Pages and slots of the full and the SWA pool, the dummy page 0 included; empty for a pool that is not split."""
    from gemma4_runtime.release import SWAKVPool

    if not isinstance(pool, SWAKVPool):
        return {}
    pools: dict[str, Any] = {"full": pool.full_kv_pool, "swa": pool.swa_kv_pool}
    slots = {space: slots_of(inner.k_buffer[0], page_size) for space, inner in pools.items()}
    pages = {f"pages_{space}_pool": count // page_size for space, count in slots.items()}
    return pages | {f"slots_{space}_pool": count for space, count in slots.items()}
