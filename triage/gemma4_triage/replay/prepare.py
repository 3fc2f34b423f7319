"""Everything that a run of the call needs: variants, memory, queries, and what fp64 makes of each variant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from gemma4_dumps.reader import Dump
from gemma4_dumps.wording import number_of
from gemma4_triage.errors import EnvironmentCannot
from gemma4_triage.replay.call import AttentionCall
from gemma4_triage.replay.dumped_values import DumpedValues, read_dumped_values
from gemma4_triage.replay.image import Image, build_image
from gemma4_triage.replay.options import ReplayOptions
from gemma4_triage.replay.reference import attend
from gemma4_triage.replay.tables import tables
from gemma4_triage.replay.values import page_values, query_values

MAX_KEYS_SEEN = 16 * 1024**2
MAX_PRODUCTS = 32 * 1024**3
"""Of a query's and a key's elements: minutes in fp64."""


@dataclass(frozen=True)
class Prepared:
    """A call with its variants and what is expected of each.

    Attributes:
        variants: entries by name.
        queries: [queries, q_heads, head_dim] float32.
        reference: fp64 outputs by variant.
        values_from: in words.
    """

    call: AttentionCall
    variants: Mapping[str, np.ndarray]
    image: Image
    queries: np.ndarray
    scale: float
    reference: Mapping[str, np.ndarray]
    values_from: str


def prepare(dump: Dump, call: AttentionCall, options: ReplayOptions) -> Prepared:
    """Raises EnvironmentCannot beyond a cap, NothingChecked for values that do not fit the call, DumpError."""
    rows, positions = call.queries
    seen = int((positions + 1 - call.first_keys[rows]).sum())
    see = f"{number_of(rows.size, 'query sees', 'queries see')} {number_of(seen, 'key')}"
    if seen > MAX_KEYS_SEEN:
        raise EnvironmentCannot(
            f"{see}, and the cap is {MAX_KEYS_SEEN}",
            "cut the dump down first with --shrink",
        )
    geometry = call.geometry
    if (products := seen * geometry.q_heads * geometry.head_dim) > MAX_PRODUCTS:
        raise EnvironmentCannot(
            f"{see} with {number_of(geometry.q_heads, 'head')} of {geometry.head_dim}, {products} products, "
            f"and the cap is {MAX_PRODUCTS}",
            "cut the dump down first with --shrink",
        )
    variants = tables(call)
    dumped = read_dumped_values(dump, call)
    shape = (geometry.page_size, geometry.kv_heads, geometry.head_dim)

    def values_of(page: int) -> tuple[np.ndarray, np.ndarray]:
        found = None if dumped is None else dumped.page(page)
        return page_values(options.seed, page, shape) if found is None else found

    image = build_image(call, variants, values_of, options.cap_bytes)
    queries = _queries(call, dumped, options.seed)
    # Seeded scores have the spread that this scale is meant for; the layer's own is for the layer's own values.
    recorded = geometry.scaling if dumped is not None and dumped.query is not None else None
    scale = recorded or geometry.head_dim**-0.5
    reference = {name: attend(call, image, table, queries, scale) for name, table in variants.items()}
    return Prepared(call, variants, image, queries, scale, reference, _origin(dumped, options.seed))


def _queries(call: AttentionCall, dumped: DumpedValues | None, seed: int) -> np.ndarray:
    if dumped is not None and dumped.query is not None:
        return dumped.query
    shape = (call.geometry.q_heads, call.geometry.head_dim)
    pairs = zip(*(array.tolist() for array in call.queries), strict=True)
    return np.stack([query_values(seed, row, position, shape) for row, position in pairs])


def _origin(dumped: DumpedValues | None, seed: int) -> str:
    seeded = f"seeded per page and position, seed {seed}"
    if dumped is None:
        return seeded
    queries = "" if dumped.query is not None else " and all queries"
    return f"from the dump for {number_of(len(dumped.used), 'page')}; all other pages{queries} {seeded}"
