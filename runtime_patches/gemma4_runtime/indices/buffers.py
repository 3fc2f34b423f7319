"""Which buffer a layer reads and writes, and how long it is. Host only: no tensor is touched."""

from __future__ import annotations

from typing import Any, NamedTuple


class Buffer(NamedTuple):
    """space: full, swa or draft. slots: token slots in it, the dummy page 0 included."""

    space: str
    slots: int


def buffer_of(pool: Any, layer_id: int, role: str | None) -> Buffer | None:
    """The key buffer of `layer_id` in `pool`, or None if the pool has no such layer.

    SGLang's own accessor is not asked: with a hierarchical cache it waits for the layer's transfer.
    """
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    if isinstance(pool, SWAKVPool):
        if layer_id not in pool.layers_mapping:
            return None
        index, is_swa = pool.layers_mapping[layer_id]
        inner: Any = pool.swa_kv_pool if is_swa else pool.full_kv_pool
        return Buffer("swa" if is_swa else "full", inner.k_buffer[index].shape[0])
    index = layer_id - getattr(pool, "start_layer", 0)
    if not 0 <= index < len(pool.k_buffer):
        return None
    return Buffer("draft" if role == "draft" else "full", pool.k_buffer[index].shape[0])


def extents(pool: Any, page_size: int) -> dict[str, int]:
    """Pages of the full and the SWA pool, the dummy page 0 included; empty for a pool that is not split."""
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    if not isinstance(pool, SWAKVPool):
        return {}
    pools: dict[str, Any] = {"full": pool.full_kv_pool, "swa": pool.swa_kv_pool}
    return {f"pages_{space}_pool": inner.k_buffer[0].shape[0] // page_size for space, inner in pools.items()}
