"""What two dumps do not have in common, as plain records, and the order in which tensors lead to a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

Letter = Literal["A", "B"]


class Absent:
    """A field that one side does not have; None is a value."""

    def __repr__(self) -> str:
        return "absent"


ABSENT: Final = Absent()

PAGE_TABLES, SEQUENCE_LENGTHS, SLOTS, OTHER_TENSORS = "page tables", "sequence lengths", "slots", "other tensors"
TENSOR_STAGES = (PAGE_TABLES, SEQUENCE_LENGTHS, SLOTS, OTHER_TENSORS)

# Parts of the names that the probes give. A table's row ends (`_indptr`) are part of it.
_PARTS = (
    (PAGE_TABLES, ("page_table", "kv_indices", "kv_indptr")),
    (SEQUENCE_LENGTHS, ("seqlens", "seq_lens")),
    (SLOTS, ("slots", "cache_loc")),
)


@dataclass(frozen=True)
class FieldDifference:
    """path: dotted, a number counts in a list: "offences.0.value". a, b: plain JSON values, or ABSENT."""

    path: str
    a: Any
    b: Any


@dataclass(frozen=True)
class EntryDifference:
    """One entry of a tensor: its index in each dimension, and what either side has there."""

    index: tuple[int, ...]
    a: bool | int | float
    b: bool | int | float


@dataclass(frozen=True)
class TensorDifference:
    """What differs between two tensors of one name.

    Attributes:
        only_in: the one side that has it, else None.
        layout: of shape, dtype, stride, storage offset and truncation.
        not_compared: why the values were not, else "".
        differing: entries out of `size`;
        entries: the first of them, in the order of the flattened tensor.
    """

    name: str
    only_in: Letter | None = None
    layout: tuple[FieldDifference, ...] = ()
    not_compared: str = ""
    size: int = 0
    differing: int = 0
    entries: tuple[EntryDifference, ...] = ()

    @property
    def hidden(self) -> int:
        """Entries that differ and are not listed."""
        return self.differing - len(self.entries)


@dataclass(frozen=True)
class EventsDifference:
    """count_a, count_b: events of either side. first: how the first event that differs does, one field each."""

    count_a: int
    count_b: int
    first: tuple[FieldDifference, ...]


@dataclass(frozen=True)
class Comparison:
    """What differs between two dumps.

    Attributes:
        sections: differences of the manifests, by the names of `sections.SECTIONS`, none empty.
        tensors: those that differ, of tensor_count names.
        volatile: what any two dumps differ in.
    """

    sections: Mapping[str, tuple[FieldDifference, ...]]
    tensors: tuple[TensorDifference, ...]
    tensor_count: int
    events: EventsDifference | None
    volatile: tuple[FieldDifference, ...]

    @property
    def equal(self) -> bool:
        """But for what is volatile."""
        return not (self.sections or self.tensors or self.events)


def tensor_stage(name: str) -> str:
    """Return one of TENSOR_STAGES."""
    return next((stage for stage, parts in _PARTS if any(part in name for part in parts)), OTHER_TENSORS)


def tensor_order(name: str) -> tuple[int, str]:
    """Sorts tensors by stage, then by name: what was translated happens to come after what it was made of."""
    return TENSOR_STAGES.index(tensor_stage(name)), name
