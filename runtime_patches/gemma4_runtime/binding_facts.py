"""Reads what attention layers are bound to, again and again while a server serves, so it has to be quick.

The layers of each model are found once. A look at them is identities, addresses and numbers, and touches no device;
only at the start a token is stored for each layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gemma4_runtime.checks.bindings import SIDES, Bound, Place
from gemma4_runtime.checks.geometry import NO_WINDOW
from gemma4_runtime.release.allocators import store

_SLOTS_HEADS_DIM = 3
_WINDOWS = ("sliding_window_size", "swa_retain_window", "full_window_pages")


@dataclass(frozen=True)
class Model:
    """The layers of one model, and where the pool stands that they read.

    Attributes:
        role: `target` or `draft`.
        layers: Its RadixAttention layers.
        pool: Returns the pool.
        fixed_scales: Whether the pool keeps what it is given, so that nothing is to be multiplied when it is read.
    """

    role: str
    layers: tuple[Any, ...]
    pool: Callable[[], Any]
    fixed_scales: bool


def model_of(role: str, runner: Any, pool: Callable[[], Any]) -> Model:
    """Return the layers of a runner's model, which read what `pool` returns."""
    from gemma4_runtime.release import RadixAttention

    layers = tuple(layer for layer in runner.model.modules() if isinstance(layer, RadixAttention))
    # bfloat16 is one of these.
    return Model(role, layers, pool, any(kind in str(runner.kv_cache_dtype) for kind in ("float16", "float32")))


def bound_now(models: Sequence[Model]) -> tuple[Bound, ...]:
    """Return what every layer is bound to at this moment."""
    return tuple(one for model in models for one in _bound(model))


def windows_now(scheduler: Any) -> dict[str, int]:
    """Return the windows that the scheduler and its prefix cache go by, by whose each is; none before it has one."""
    cache = getattr(scheduler, "tree_cache", None)
    cache = getattr(cache, "inner", cache)
    components = getattr(cache, "components", None)
    owners = (scheduler, cache, *(components.values() if isinstance(components, dict) else ()))
    return {
        f"{type(owner).__name__}.{name}": width
        for owner in owners
        for name in _WINDOWS
        if isinstance(width := getattr(owner, name, None), int)
    }


def stored_now(model: Model) -> dict[int, tuple[Place | None, Place | None]]:
    """Store one token for each layer id in the page that nobody reads, and say whose buffers have it.

    What the page held is put back. Nothing is stored in a kind of pool whose lookup is not known here.

    Returns:
        By layer id, where the keys and where the values are read which were stored for it; None: no layer reads them.
    """
    pool = model.pool()
    if not _is_plain(pool) or any(one.store_dtype != one.dtype for one in _parts(pool)):
        return {}
    buffers = [buffer for part in _parts(pool) for buffer in (*part.k_buffer, *part.v_buffer)]
    if any(buffer.ndim != _SLOTS_HEADS_DIM for buffer in buffers):
        # By pages, with the heads ahead of a page's tokens.
        return {}
    before = [buffer[0].clone() for buffer in buffers]
    layers = {layer.layer_id: layer for layer in sorted(model.layers, key=lambda one: one.layer_id)}
    at = torch.zeros(1, dtype=torch.int64, device=buffers[0].device)
    with torch.inference_mode():
        for mark, (layer, attention) in enumerate(layers.items(), 1):
            keys, values = pool.get_kv_buffer(layer)
            keys, values = torch.full_like(keys[:1], mark), torch.full_like(values[:1], -mark)
            if not store(pool, attention, at, keys, values):
                # Of a release whose pools are not known: nothing was stored.
                return {}
        read = {layer: [float(one[0].flatten()[0]) for one in pool.get_kv_buffer(layer)] for layer in layers}
        for buffer, old in zip(buffers, before, strict=True):
            buffer[0].copy_(old)
    has = {mark: (what, layer) for layer, marks in read.items() for what, mark in zip(SIDES, marks, strict=True)}
    return {layer: (has.get(mark), has.get(-mark)) for mark, layer in enumerate(layers, 1)}


def _parts(pool: Any) -> tuple[Any, ...]:
    return (pool,) if getattr(pool, "layers_mapping", None) is None else (pool.full_kv_pool, pool.swa_kv_pool)


def _is_plain(pool: Any) -> bool:
    """Return whether a pool hands its buffers out as they are: unpacks nothing, and waits for no pages of the host."""
    from gemma4_runtime.release import MHATokenToKVPool

    parts = _parts(pool)
    return all(type(one) is MHATokenToKVPool for one in parts) and all(
        getattr(one, "layer_transfer_counter", None) is None for one in (pool, *parts)
    )


def _bound(model: Model) -> Iterator[Bound]:
    pool = model.pool()
    places, name = _places(pool), id(pool)
    for layer in model.layers:
        window = layer.sliding_window_size
        yield Bound(
            model.role,
            name,
            layer.layer_id,
            places(layer.layer_id),
            NO_WINDOW if window is None else window,
            layer.scaling,
            (getattr(layer, "k_scale_float", None), getattr(layer, "v_scale_float", None))
            if model.fixed_scales
            else None,
        )


def _places(pool: Any) -> Callable[[int], tuple[int, int] | None]:
    """Return what says where the keys and values of a layer lie; None of a pool or an id that is not known here."""
    mapping = getattr(pool, "layers_mapping", None)
    # Any other is looked at by its lists alone.
    is_plain = _is_plain(pool)

    def of(layer: int) -> tuple[int, int] | None:
        if mapping is None:
            held, at = pool, layer - getattr(pool, "start_layer", 0)
        else:
            at, is_swa = mapping.get(layer, (-1, False))
            held = pool.swa_kv_pool if is_swa else pool.full_kv_pool
        keys, values = getattr(held, "k_buffer", ()), getattr(held, "v_buffer", ())
        if not 0 <= at < min(len(keys), len(values)):
            return None
        if not is_plain:
            return keys[at].data_ptr(), values[at].data_ptr()
        # What attention is given, by whatever it is looked up.
        read = pool.get_kv_buffer(layer)
        return read[0].data_ptr(), read[1].data_ptr()

    return of
