"""Paged attention in fp64, reading a table as a kernel does: entry by entry, from the first visible key to the last."""

from __future__ import annotations

import numpy as np

from gemma4_triage.replay.call import AttentionCall
from gemma4_triage.replay.image import Image, pages_of
from gemma4_triage.replay.tables import is_placeholder

_CHUNK_KEYS, _CHUNK_BYTES = 4096, 32 * 1024**2


def attend(call: AttentionCall, image: Image, entries: np.ndarray, queries: np.ndarray, scale: float) -> np.ndarray:
    """Attend with queries [queries, q_heads, head_dim], those of `call.queries`, by one variant's table of entries.

    The entries are [rows, columns], the result [queries, q_heads, head_dim] float64. Values that a dump brings along
    need not be finite.
    """
    with np.errstate(all="ignore"):
        return _attend(call, image, entries, queries, scale)


def _attend(call: AttentionCall, image: Image, entries: np.ndarray, queries: np.ndarray, scale: float) -> np.ndarray:
    geometry = call.geometry
    per_slot = (-1, geometry.kv_heads, geometry.head_dim)
    keys, values = image.keys.reshape(per_slot), image.values.reshape(per_slot)
    grouped = queries.astype(np.float64).reshape(len(queries), geometry.kv_heads, -1, geometry.head_dim)
    out = np.zeros(grouped.shape)
    rows, positions = call.queries
    chunk = max(min(_CHUNK_KEYS, _CHUNK_BYTES // (8 * geometry.kv_heads * geometry.head_dim)), 1)
    for number, (row, position) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
        first = max(position - call.window_left, 0) if call.window_left >= 0 else 0
        state = _Softmax(grouped[number] * scale)
        for begin in range(first, position + 1, chunk):
            slots = _stored_slots(call, image, entries[row], begin, min(begin + chunk, position + 1))
            state.add(keys[slots].astype(np.float64), values[slots].astype(np.float64))
        out[number] = state.result()
    return out.reshape(queries.shape)


class _Softmax:
    """Running softmax over chunks of keys, so that a long row needs no more memory than a chunk."""

    def __init__(self, query: np.ndarray) -> None:
        """query: [kv_heads, group, head_dim], scaled."""
        self._query = query
        self._top = np.full(query.shape[:2], -np.inf)
        self._sum = np.zeros(query.shape[:2])
        self._out = np.zeros(query.shape)

    def add(self, keys: np.ndarray, values: np.ndarray) -> None:
        """keys, values: [keys, kv_heads, head_dim]."""
        scores = self._query @ keys.transpose(1, 2, 0)
        top = np.maximum(self._top, scores.max(axis=2))
        weights, kept = np.exp(scores - top[..., None]), np.exp(self._top - top)
        self._out = self._out * kept[..., None] + weights @ values.transpose(1, 0, 2)
        self._sum, self._top = self._sum * kept + weights.sum(axis=2), top

    def result(self) -> np.ndarray:
        return self._out / self._sum[..., None]


def _stored_slots(call: AttentionCall, image: Image, entries: np.ndarray, begin: int, end: int) -> np.ndarray:
    """Say where the image holds the keys at positions begin to end of a row."""
    page_size, positions = call.geometry.page_size, np.arange(begin, end)
    met = entries[positions // call.unit]
    offsets = positions % page_size if call.paged else np.where(is_placeholder(met), 0, met % page_size)
    return image.stored(pages_of(call, met)) * page_size + offsets
