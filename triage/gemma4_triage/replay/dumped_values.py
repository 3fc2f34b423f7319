"""Keys, values and queries that a dump brings along, in place of seeded ones: see `gemma4_dumps.included`.

Read page by page: a dump may be larger than memory, and only the pages that some table reaches are wanted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from gemma4_dumps.dtypes import storage_dtype, to_float32
from gemma4_dumps.included import KEYS, PAGE_IDS, QUERY, VALUES
from gemma4_dumps.reader import Dump
from gemma4_triage.errors import NothingChecked
from gemma4_triage.replay.call import AttentionCall
from gemma4_triage.replay.integers import integers


@dataclass(frozen=True)
class DumpedValues:
    """Keys and values that a dump holds.

    Attributes:
        places: page id -> place in the dump's keys and values.
        shape: of one page, [page_size, kv_heads, head_dim].
        query: [queries, q_heads, head_dim] float32, or None.
    """

    dump: Dump
    places: dict[int, int]
    shape: tuple[int, int, int]
    query: np.ndarray | None
    used: set[int] = field(default_factory=set)

    def page(self, page: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Keys and values of a page, each of `shape`, float32; None if the dump does not have it. Raises DumpError."""
        place = self.places.get(page)
        if place is None:
            return None
        self.used.add(page)
        # What a float64 holds may be more than a float32 can.
        with np.errstate(over="ignore"):
            keys, values = (
                to_float32(self._stored(name, place), self.dump.manifest.tensors[name].dtype) for name in (KEYS, VALUES)
            )
        return keys, values

    def stored(self, name: str, pages: list[int]) -> np.ndarray:
        """Return the bits of pages that the dump has, [pages, page_size, kv_heads, head_dim]. Raises DumpError."""
        found = [self._stored(name, self.places[page]) for page in pages]
        empty = np.zeros((0, *self.shape), storage_dtype(self.dump.manifest.tensors[name].dtype))
        return np.stack(found) if found else empty

    def _stored(self, name: str, place: int) -> np.ndarray:
        size = math.prod(self.shape)
        return self.dump.window(name, place * size, (place + 1) * size).reshape(self.shape)


def read_dumped_values(dump: Dump, call: AttentionCall) -> DumpedValues | None:
    """Return None if the dump has none. Raises NothingChecked if they do not fit the call, DumpError."""
    if not {PAGE_IDS, KEYS, VALUES} <= dump.manifest.tensors.keys():
        return None
    geometry = call.geometry
    ids = integers(dump, PAGE_IDS, 1)
    shape = (geometry.page_size, geometry.kv_heads, geometry.head_dim)
    for name in (KEYS, VALUES):
        found = dump.record(name).shape
        if found != (*ids.shape, *shape):
            raise NothingChecked(
                f"{name} is {list(found)}, the call needs {[*ids.shape, *shape]}", "--heads and --head-dim say so"
            )
    places = {int(page): place for place, page in reversed([*enumerate(ids.tolist())])}
    return DumpedValues(dump, places, shape, _query(dump, call))


def _query(dump: Dump, call: AttentionCall) -> np.ndarray | None:
    if QUERY not in dump.manifest.tensors:
        return None
    wanted = (len(call.queries[0]), call.geometry.q_heads, call.geometry.head_dim)
    found = dump.record(QUERY).shape
    if found != wanted:
        raise NothingChecked(f"query is {list(found)}, the call needs {list(wanted)}")
    with np.errstate(over="ignore"):
        return dump.as_float32(QUERY)
