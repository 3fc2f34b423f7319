"""Which layers of a Gemma-4 have KV of their own.

The last `num_kv_shared_layers` read an earlier layer's, see models/gemma4_causal.py, Gemma4Attention, which binds them
to that layer's id.
"""

from __future__ import annotations

from collections.abc import Iterable


def own_kv(layer_ids: Iterable[int], layers: int, shared_layers: int) -> list[int]:
    """Return those of `layer_ids` that own KV, in their order. layers: of the whole model."""
    return [layer for layer in layer_ids if layer < layers - shared_layers]
