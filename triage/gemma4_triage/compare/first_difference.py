"""What differs first in the order in which data flows: all that comes after may only follow from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gemma4_dumps.plain_json import plain
from gemma4_triage.compare.difference import TENSOR_STAGES, Comparison, FieldDifference, TensorDifference, tensor_stage
from gemma4_triage.compare.value_text import value_texts

_BEFORE_TENSORS = ("provenance", "geometry")
_EVENTS = "events"
_AFTER_TENSORS = ("scalars", _EVENTS, "finding", "guards", "versions", "launch", "completeness", "other")
_OF_THE_PROCESS = ("guards", "versions")


@dataclass(frozen=True)
class FirstDifference:
    """stage: a section of the manifest, a stage of `difference.TENSOR_STAGES`, or "events". text: what is there."""

    stage: str
    text: str

    @property
    def flows(self) -> bool:
        """It is part of what a kernel gets, not only of what was noted about it."""
        return self.stage in (*_BEFORE_TENSORS, *TENSOR_STAGES)


def first_difference(comparison: Comparison) -> FirstDifference | None:
    """Return None if the dumps are equal."""
    return next(_in_order(comparison), None)


def sentence(comparison: Comparison) -> str:
    """Say to a person what to look at first."""
    first = first_difference(comparison)
    if first is None:
        return "The two dumps are equal."
    if not first.flows:
        return f"Provenance, geometry and tensors are equal; of the rest, {first.stage} differs first: {first.text}."
    said = f"What differs first as data flows is in the {first.stage}: {first.text}."
    apart = [name for name in _OF_THE_PROCESS if name in comparison.sections]
    return f"{said} The processes were not the same either: see {' and '.join(apart)}." if apart else said


def _in_order(comparison: Comparison) -> Iterator[FirstDifference]:
    yield from _of_sections(comparison, _BEFORE_TENSORS)
    for stage in TENSOR_STAGES:
        for tensor in comparison.tensors:
            if tensor_stage(tensor.name) == stage:
                yield FirstDifference(stage, tensor_text(tensor))
    yield from _of_sections(comparison, _AFTER_TENSORS)


def _of_sections(comparison: Comparison, names: tuple[str, ...]) -> Iterator[FirstDifference]:
    for name in names:
        events = comparison.events.first if comparison.events else ()
        for field in events if name == _EVENTS else comparison.sections.get(name, ()):
            yield FirstDifference(name, field_text(field))


def field_text(field: FieldDifference) -> str:
    """Return words such as 'provenance.table_space is "full" in A, "swa" in B'."""
    return f"{field.path} {_both(field.a, field.b)}"


def tensor_text(tensor: TensorDifference) -> str:
    """Return words such as "page_table[5, 7] is 65 in A, 49 in B, the first of 2 that differ, of 60"."""
    if tensor.only_in:
        return f"only {tensor.only_in} has {tensor.name}"
    if not tensor.entries:
        return f"{tensor.name}'s {field_text(tensor.layout[0])}"
    first = tensor.entries[0]
    place = f"{tensor.name}[{', '.join(map(str, first.index))}]" if first.index else tensor.name
    return (
        f"{place} {_both(plain(first.a), plain(first.b))}, "
        f"the first of {tensor.differing} that differ, of {tensor.size}"
    )


def _both(a: Any, b: Any) -> str:
    texts = value_texts(a, b)
    return f"is {texts[0]} in A, {texts[1]} in B"
