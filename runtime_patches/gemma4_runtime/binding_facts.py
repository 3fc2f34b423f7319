"""Reads what attention layers are bound to, again and again while a server serves, so it has to be quick.

The layers of each model are found once. A look at them is identities, addresses and numbers, and touches no device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gemma4_runtime.checks.bindings import Bound
from gemma4_runtime.checks.geometry import NO_WINDOW


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
    from gemma4_runtime.release import MHATokenToKVPool

    mapping = getattr(pool, "layers_mapping", None)
    held_in = (pool,) if mapping is None else (pool.full_kv_pool, pool.swa_kv_pool)
    # What unpacks as it is read, or waits for pages from the host, is looked at by its lists alone.
    is_plain = all(type(one) is MHATokenToKVPool and one.layer_transfer_counter is None for one in held_in)
    is_plain = is_plain and getattr(pool, "layer_transfer_counter", None) is None

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
