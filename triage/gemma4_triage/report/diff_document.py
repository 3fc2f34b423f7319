"""A comparison of two dumps as the JSON document of `diff dumps --json`."""

from collections.abc import Sequence
from typing import Any

from gemma4_dumps.plain_json import plain
from gemma4_triage.compare.difference import ABSENT, Comparison, EventsDifference, FieldDifference, TensorDifference
from gemma4_triage.compare.first_difference import first_difference, sentence
from gemma4_triage.compare.side import Side
from gemma4_triage.report.diagnosis_document import damaged_document


def diff_document(a: Side, b: Side, comparison: Comparison, rows: int, volatile: bool) -> dict[str, Any]:
    """rows: of each list. volatile: with the volatile fields."""
    first = first_difference(comparison)
    return {
        "equal": comparison.equal,
        "a": _side(a),
        "b": _side(b),
        "first": None if first is None else {"stage": first.stage, "text": first.text},
        "sentence": sentence(comparison),
        "sections": {name: _fields(fields, rows) for name, fields in comparison.sections.items()},
        "tensor_count": comparison.tensor_count,
        "tensors": {tensor.name: _tensor(tensor) for tensor in comparison.tensors},
        "events": None if comparison.events is None else _events(comparison.events, rows),
        "volatile_count": len(comparison.volatile),
        "volatile": _fields(comparison.volatile, rows) if volatile else None,
        "damaged": damaged_document([a.dump, b.dump]),
    }


def _side(side: Side) -> dict[str, str]:
    return {"dump": side.dump.manifest.dump_id, "path": side.dump.place}


def _fields(fields: Sequence[FieldDifference], rows: int) -> dict[str, Any]:
    return {
        "count": len(fields),
        "hidden": max(len(fields) - rows, 0),
        "differences": [_field(field) for field in fields[:rows]],
    }


def _field(field: FieldDifference) -> dict[str, Any]:
    """Return a side that lacks the field has no key here; null is a value."""
    sides = {"a": field.a, "b": field.b}
    return {"field": field.path} | {name: value for name, value in sides.items() if value is not ABSENT}


def _tensor(tensor: TensorDifference) -> dict[str, Any]:
    return {
        "only_in": tensor.only_in,
        "layout": [_field(field) for field in tensor.layout],
        "not_compared": tensor.not_compared or None,
        "entries": tensor.size,
        "differing": tensor.differing,
        "hidden": tensor.hidden,
        "differences": [
            {"index": list(entry.index), "a": plain(entry.a), "b": plain(entry.b)} for entry in tensor.entries
        ],
    }


def _events(events: EventsDifference, rows: int) -> dict[str, Any]:
    return {"count_a": events.count_a, "count_b": events.count_b, "first": _fields(events.first, rows)}
