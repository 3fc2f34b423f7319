"""Keys, values and queries from a seed: the same for the same page, position and head, whatever else is replayed.

All are multiples of 1/64 up to 2, which bfloat16, float16 and float32 hold exactly, so that every backend is given the
same numbers. The values of a page have an offset of that page's own: averaging over many keys does not level it out,
and reading the wrong page shows.
"""

from __future__ import annotations

import numpy as np

_MASK = 2**64 - 1
_PAGES, _QUERIES = 0, 1


def page_values(seed: int, page: int, shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of one page, each [page_size, kv_heads, head_dim] float32."""
    page_size, kv_heads, head_dim = shape
    count = page_size * kv_heads * head_dim
    raw = _bytes(seed, _PAGES, page, 2 * count + kv_heads)
    keys, noise = (part.reshape(shape).astype(np.float32) for part in (raw[:count], raw[count : 2 * count] // 4))
    offset = (raw[2 * count :] // 2).astype(np.float32)
    return keys / 64, (noise + offset[None, :, None]) / 64


def query_values(seed: int, row: int, position: int, shape: tuple[int, int]) -> np.ndarray:
    """Return one query, [q_heads, head_dim] float32."""
    return _bytes(seed, _QUERIES, row << 32 | position, shape[0] * shape[1]).reshape(shape).astype(np.float32) / 64


def _bytes(seed: int, stream: int, number: int, count: int) -> np.ndarray:
    """int8 [count]. The raw words of Philox are the same in every NumPy release; its distributions are not."""
    words = np.random.Philox(key=np.array([(seed * 2 + stream) & _MASK, number & _MASK], np.uint64))
    return words.random_raw(-(-count // 8)).astype("<u8").view(np.int8)[:count]
