"""Reads the geometry of runners, pools and attention backends into the records of `checks/geometry.py`.

It touches no device: shapes, sizes, identities.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from gemma4_runtime.checks.geometry import NO_WINDOW, Layer, Node, Pool, Shared, SubPool, SwaRoom
from gemma4_runtime.indices.buffers import slots_of
from gemma4_runtime.pools.arithmetic import own_kv

_TYPES = {"sliding_attention": "sliding", "full_attention": "full"}


def name_of(thing: Any) -> str:
    """Type and identity, which is all that a comparison of shared objects needs."""
    return f"{type(thing).__name__}@{id(thing):x}"


def shared_facts(runner: Any) -> Shared:
    """Return what a ModelRunner, target's or draft's, has in common with the other."""
    window = runner.sliding_window_size
    return Shared(
        allocator=name_of(runner.token_to_kv_pool_allocator),
        request_table=name_of(runner.req_to_token_pool),
        page_size=int(runner.page_size),
        context_length=int(runner.model_config.context_len),
        kv_dtype=str(runner.kv_cache_dtype),
        sliding_window=NO_WINDOW if window is None else int(window),
    )


def layer_facts(model: Any) -> tuple[Layer, ...]:
    """Return every RadixAttention of `model`. Type, window and scale are known for Gemma-4's layers."""
    from gemma4_runtime.release import Gemma4Attention, RadixAttention

    owners: dict[int, tuple[str, int]] = {}
    sources: dict[int, int | None] = {}
    for attention in model.modules():
        if isinstance(attention, Gemma4Attention):
            config: Any = attention.config
            kind = _TYPES[config.layer_types[attention.layer_id]]
            owners[id(attention.attn)] = (kind, config.sliding_window)
            sources[id(attention.attn)] = _source(config, attention.layer_id)
    found = []
    for layer in model.modules():
        if not isinstance(layer, RadixAttention):
            continue
        window_left = NO_WINDOW if layer.sliding_window_size is None else int(layer.sliding_window_size)
        kind, config_window = owners.get(id(layer), ("full" if window_left == NO_WINDOW else "sliding", None))
        found.append(
            Layer(
                layer_id=int(layer.layer_id),
                type=kind,
                kv_heads=int(layer.tp_k_head_num),
                k_dim=int(layer.qk_head_dim),
                v_dim=int(layer.v_head_dim),
                window_left=window_left,
                config_window=None if config_window is None else int(config_window),
                scaling=float(layer.scaling),
                # Gemma-4 norms queries and keys, and scales no score; its configuration has no field for it.
                config_scaling=1.0 if id(layer) in owners else None,
                kv_scales=_kv_scales(layer),
                config_source=sources.get(id(layer)),
            )
        )
    return tuple(found)


def _source(config: Any, layer: int) -> int | None:
    """Return the last layer that owns KV and is of a layer's type, or the layer itself; None if none owns any."""
    kinds = config.layer_types
    owning = own_kv(range(len(kinds)), len(kinds), int(getattr(config, "num_kv_shared_layers", 0) or 0))
    if layer in owning:
        return layer
    return max((one for one in owning if kinds[one] == kinds[layer]), default=None)


def _kv_scales(layer: Any) -> tuple[float, float]:
    keys, values = (getattr(layer, name, None) for name in ("k_scale_float", "v_scale_float"))
    return 1.0 if keys is None else float(keys), 1.0 if values is None else float(values)


def kv_owners(target: Any, layers: tuple[Layer, ...]) -> dict[str, Layer]:
    """Return by type the target's layer that owns the KV of its last layer of that type, as its configuration says.

    A frozen draft reads these. Empty for a model whose configuration has no types of layers.

    Args:
        target: Its ModelRunner.
        layers: Of its model.
    """
    config = getattr(target.model_config, "hf_text_config", None)
    kinds = [_TYPES.get(kind) for kind in getattr(config, "layer_types", None) or ()]
    with_kv = own_kv(range(len(kinds)), len(kinds), int(getattr(config, "num_kv_shared_layers", 0) or 0))
    last = {kinds[layer]: layer for layer in with_kv}
    # In reverse: layers that share another's KV are bound to its id, and come behind it.
    owned = {layer.layer_id: layer for layer in reversed(layers) if last.get(layer.type) == layer.layer_id}
    return {kind: owned[layer] for kind, layer in last.items() if kind is not None and layer in owned}


def pool_facts(pool: Any) -> Pool:
    """Return what a KV pool is; layers of pools that are neither SWA nor plain multi-head pools are left unknown."""
    from gemma4_runtime.release import MHATokenToKVPool, SWAKVPool

    if isinstance(pool, SWAKVPool):
        parts = {"sliding": _part(pool.swa_kv_pool), "full": _part(pool.full_kv_pool)}
        places = {layer: "sliding" if is_swa else "full" for layer, (_, is_swa) in pool.layers_mapping.items()}
        return Pool(name_of(pool), parts, places)
    places = None
    if isinstance(pool, MHATokenToKVPool):
        places = dict.fromkeys(range(pool.start_layer, pool.start_layer + pool.layer_num), "all")
    return Pool(name_of(pool), {"all": _part(pool)}, places)


def _part(pool: Any) -> SubPool:
    buffers = getattr(pool, "k_buffer", None)
    # The buffers are what a kernel meets; `size` is what was meant to be there. Page 0 is the dummy page.
    slots = slots_of(buffers[0], pool.page_size) - int(pool.page_size) if buffers else int(pool.size)
    return SubPool(slots, *(getattr(pool, name, None) for name in ("head_num", "head_dim", "v_head_dim")))


def slots_to_hand_out(allocator: Any) -> dict[str, int]:
    """Say how many slots an allocator gives out: `full`, and `sliding` if it serves an SWA pool.

    An SWA allocator's own `size` is that of the smaller pool.
    """
    slots = {"full": int(getattr(allocator, "size_full", allocator.size))}
    if hasattr(allocator, "size_swa"):
        slots["sliding"] = int(allocator.size_swa)
    return slots


def sizes_said(allocator: Any) -> dict[str, tuple[int, ...]]:
    """Say what a pool pair's allocator, and the one of each pool, believe to be its size; empty for any other kind.

    What shards a pool over ranks has a size of its own in each of these words.
    """
    from gemma4_runtime.release import SWATokenToKVPoolAllocator

    if type(allocator) is not SWATokenToKVPoolAllocator or getattr(allocator, "dcp_size", 1) > 1:
        return {}
    sides = {"full": allocator.full_attn_allocator, "sliding": allocator.swa_attn_allocator}
    said = {"full": int(allocator.size_full), "sliding": int(allocator.size_swa)}
    return {
        name: (
            said[name],
            int(pool.size),
            int(getattr(pool, "num_pages", pool.size // pool.page_size)) * pool.page_size,
        )
        for name, pool in sides.items()
    }


def backend_nodes(backend: Any, site: str) -> Iterator[Node]:
    """Yield every node of a backend that holds a pool, as it stands now, each once.

    Children are found by their type, whatever the attribute is called, so that one which no swap site names is found
    as well. A multi-step wrapper is no AttentionBackend itself; its steps are.
    """
    from gemma4_runtime.release import AttentionBackend

    seen: set[int] = set()
    pending = [(type(backend).__name__, backend)]
    while pending:
        path, node = pending.pop(0)
        if id(node) in seen:
            continue
        seen.add(id(node))
        for name, value in vars(node).items():
            several = isinstance(value, (list, tuple))
            for position, child in enumerate(value if several else (value,)):
                if isinstance(child, AttentionBackend):
                    pending.append((f"{path}.{name}{f'[{position}]' if several else ''}", child))
        pool = vars(node).get("token_to_kv_pool")
        if pool is not None:
            yield Node(site, path, pool_facts(pool), _swa_state(node))


def _swa_state(node: Any) -> str | None:
    if "_swa_kv_pool" not in vars(node):
        return None
    state = node._swa_kv_pool
    return "" if state is None else name_of(state)


def frozen_nodes(worker: Any) -> tuple[Node, ...]:
    """Return the nodes of a frozen draft's backend as they stand inside each of SGLang's two pool swaps.

    The swaps are entered for real, with whatever is attached around them, so this says what the draft will read and
    not what its attributes hold between steps: the worker's own 64-token pool may be there, but nobody reads it.
    """
    found = []
    for name in ("_frozen_kv_target_view", "_target_kv_pool_view"):
        with getattr(worker, name)(SimpleNamespace(spec_info=None)):
            found.extend(backend_nodes(worker.draft_attn_backend, name.removeprefix("_")))
    return tuple(found)


def swa_room(runner: Any, chunk: int | None, longest_input: int) -> SwaRoom | None:
    """Return what the target's allocator has; None without an SWA pool."""
    from gemma4_runtime.release import SWATokenToKVPoolAllocator

    allocator = runner.token_to_kv_pool_allocator
    if not isinstance(allocator, SWATokenToKVPoolAllocator) or runner.sliding_window_size is None:
        return None
    return SwaRoom(
        swa_slots=int(allocator.size_swa),
        full_slots=int(allocator.size_full),
        page_size=int(allocator.page_size),
        window=int(runner.sliding_window_size),
        chunk=chunk if chunk and chunk > 0 else None,
        longest_input=longest_input,
    )
