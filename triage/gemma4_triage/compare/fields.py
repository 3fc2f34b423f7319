"""Two JSON values, field by field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gemma4_dumps.schema import Graph, Host, Layer, Manifest, Offence, Provenance, TensorRecord
from gemma4_triage.compare.difference import ABSENT, FieldDifference

# Declared names come in the order of the schema, all others by name: swapping the sides changes no order.
_RANK = {
    name: rank
    for record in (TensorRecord, Graph, Host, Layer, Offence, Provenance, Manifest)
    for rank, name in enumerate(record.model_fields)
}


def field_differences(a: Any, b: Any, path: str = "") -> Iterator[FieldDifference]:
    """Yield the smallest parts that differ. a, b: plain JSON values, see `gemma4_dumps.plain_json`.

    Lists of one length are compared place by place; others differ as a whole, unless they hold records.
    """
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys(), key=field_order):
            yield from field_differences(a.get(key, ABSENT), b.get(key, ABSENT), f"{path}.{key}" if path else key)
    elif isinstance(a, list) and isinstance(b, list) and (len(a) == len(b) or _holds_records(a + b)):
        for place in range(max(len(a), len(b))):
            left = a[place] if place < len(a) else ABSENT
            right = b[place] if place < len(b) else ABSENT
            yield from field_differences(left, right, f"{path}.{place}")
    elif isinstance(a, bool) != isinstance(b, bool) or a != b:
        # Python takes True for 1; JSON does not.
        yield FieldDifference(path, a, b)


def field_order(name: str) -> tuple[int, str]:
    """Sorts the names of fields."""
    return _RANK.get(name, len(_RANK)), name


def _holds_records(values: list[Any]) -> bool:
    return any(isinstance(value, dict) for value in values)
