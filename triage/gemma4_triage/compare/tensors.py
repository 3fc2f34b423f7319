"""Tensors of two dumps: names, layouts and values. Values are read in windows, so tensors may have any size."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import prod

import numpy as np

from gemma4_dumps.dtypes import to_float32
from gemma4_dumps.plain_json import plain
from gemma4_dumps.schema import TensorRecord
from gemma4_triage.compare.difference import ABSENT, EntryDifference, FieldDifference, TensorDifference, tensor_order
from gemma4_triage.compare.fields import field_order
from gemma4_triage.compare.side import Side

WINDOW_ENTRIES = 512 * 1024
"""Read at once from each side: 4 MiB at most."""

_WHOLE = ("int", "uint", "bool")


def compare_tensors(a: Side, b: Side, rows: int) -> tuple[TensorDifference, ...]:
    """Return the tensors that differ, page tables first (see `stages`). rows: how many entries of each to list.

    Raises DumpUnreadable for a damaged file.
    """
    names = sorted(a.dump.manifest.tensors.keys() | b.dump.manifest.tensors.keys(), key=tensor_order)
    found = (_compare(a, b, name, rows) for name in names)
    return tuple(one for one in found if one is not None)


def _compare(a: Side, b: Side, name: str, rows: int) -> TensorDifference | None:
    for side, other in ((a, b), (b, a)):
        if name not in other.dump.manifest.tensors:
            return TensorDifference(name, only_in=side.letter, size=prod(side.record(name).shape))
    left, right = a.record(name), b.record(name)
    layout = _layout(left, right)
    size, reason = prod(left.shape), _not_comparable(left.shape, right.shape, left.dtype, right.dtype)
    if reason:
        return TensorDifference(name, layout=layout, not_compared=reason)
    differing, entries = _values(a, b, name, rows)
    if not (layout or differing):
        return None
    return TensorDifference(name, layout=layout, size=size, differing=differing, entries=entries)


def _layout(left: TensorRecord, right: TensorRecord) -> tuple[FieldDifference, ...]:
    """Shape and stride as a whole: a dimension by itself says little."""
    a, b = plain(left.model_dump()), plain(right.model_dump())
    pairs = [(name, a.get(name, ABSENT), b.get(name, ABSENT)) for name in sorted(a.keys() | b.keys(), key=field_order)]
    return tuple(FieldDifference(name, *values) for name, *values in pairs if values[0] != values[1])


def _not_comparable(left: tuple[int, ...], right: tuple[int, ...], left_dtype: str, right_dtype: str) -> str:
    if left != right:
        return "their shapes differ"
    if left_dtype.startswith(_WHOLE) != right_dtype.startswith(_WHOLE):
        return "one holds whole numbers, the other floats"
    return ""


def _values(a: Side, b: Side, name: str, rows: int) -> tuple[int, tuple[EntryDifference, ...]]:
    """Count the entries that differ, and return the first `rows` of them."""
    shape, differing, entries = a.record(name).shape, 0, []
    for start in range(0, prod(shape), WINDOW_ENTRIES):
        left, right = (_window(side, name, start) for side in (a, b))
        places = np.flatnonzero(_unequal(left, right))
        differing += len(places)
        for place in islice(places.tolist(), rows - len(entries)):
            index = tuple(_index(start + place, shape))
            entries.append(EntryDifference(index, left[place].item(), right[place].item()))
    return differing, tuple(entries)


def _window(side: Side, name: str, start: int) -> np.ndarray:
    """Entries from `start` on, 1-D: whole numbers as they are, float64 too, all others exactly in float32."""
    values, dtype = side.window(name, start, start + WINDOW_ENTRIES), side.record(name).dtype
    return values if dtype.startswith(_WHOLE) or dtype == "float64" else to_float32(values, dtype)


def _unequal(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Say of each element whether the values differ, NaN being equal to NaN: bool, the shape of both."""
    unequal = left != right
    if left.dtype.kind == "f":
        unequal &= ~(np.isnan(left) & np.isnan(right))
    return unequal


def _index(place: int, shape: tuple[int, ...]) -> Iterator[int]:
    """Return the index of element `place` of the flattened tensor; Python's integers hold any shape."""
    for inner in range(1, len(shape) + 1):
        rest = prod(shape[inner:])
        yield place // rest
        place %= rest
