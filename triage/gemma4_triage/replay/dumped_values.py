"""Keys, values and queries that a dump brings along, in place of seeded ones.

| tensor       | holds                                                                                   |
|--------------|-----------------------------------------------------------------------------------------|
| kv_page_ids  | [pages], the pages of the buffer whose values are here                                   |
| key_pages, value_pages | [pages, page_size, kv_heads, head_dim]                                        |
| query        | [queries, q_heads, head_dim], a row's last one if there is one query a row               |

No probe writes them: a dump holds no KV values unless someone asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gemma4_dumps.reader import Dump
from gemma4_triage.errors import NothingChecked
from gemma4_triage.replay.call import AttentionCall

PAGE_IDS, KEYS, VALUES, QUERY = "kv_page_ids", "key_pages", "value_pages", "query"


@dataclass(frozen=True)
class DumpedValues:
    """places: page id -> place in keys and values, [pages, page_size, kv_heads, head_dim] float32. query: or None."""

    places: dict[int, int]
    keys: np.ndarray
    values: np.ndarray
    query: np.ndarray | None


def read_dumped_values(dump: Dump, call: AttentionCall) -> DumpedValues | None:
    """None if the dump has none. Raises NothingChecked if they do not fit the call, DumpError."""
    known = dump.manifest.tensors
    if not {PAGE_IDS, KEYS, VALUES} <= known.keys():
        return None
    ids, geometry = dump.tensor(PAGE_IDS), call.geometry
    wanted = (*ids.shape, geometry.page_size, geometry.kv_heads, geometry.head_dim)
    for name in (KEYS, VALUES):
        if ids.ndim != 1 or known[name].shape != wanted:
            raise NothingChecked(
                f"{name} is {list(known[name].shape)}, the call needs {list(wanted)}", "--heads and --head-dim say so"
            )
    query = None
    if QUERY in known:
        wanted = (len(call.queries[0]), geometry.q_heads, geometry.head_dim)
        if known[QUERY].shape != wanted:
            raise NothingChecked(f"query is {list(known[QUERY].shape)}, the call needs {list(wanted)}")
        query = dump.as_float32(QUERY)
    places = {int(page): place for place, page in enumerate(ids.tolist())}
    return DumpedValues(places, dump.as_float32(KEYS), dump.as_float32(VALUES), query)
