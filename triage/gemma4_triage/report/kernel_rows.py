"""Documents of `bench kernels` as one set of rows, for the picture and for the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemma4_repro.kernel_bench.plan import ARMS, MODELS, OPS
from gemma4_repro.kernel_bench.rows import cell_of
from gemma4_repro.kernel_bench.targets import cells_of

Key = tuple[str, str, int]


@dataclass(frozen=True)
class KernelRows:
    """cells: rows by cell and arm, in the order of ops, models and sizes. arms: that any cell has."""

    documents: tuple[Mapping[str, Any], ...]
    cells: Mapping[Key, Mapping[str, Mapping[str, Any]]]
    arms: tuple[str, ...]

    @property
    def panels(self) -> list[tuple[str, str]]:
        """(op, model) of what was measured."""
        return list(dict.fromkeys((op, model) for op, model, _ in self.cells))


def gather(documents: Sequence[Mapping[str, Any]]) -> KernelRows:
    """Return the rows of all documents, which are of one device and the same versions.

    A cell that was measured again is the later run's, all its arms: arms are compared within a run.

    Raises:
        KeyError: rows are not as the bench writes them.
        TypeError: likewise.
        ValueError: an arm of a cell is in one document twice, or there is no row.
    """
    dated = sorted(documents, key=lambda document: document["date"])
    cells: dict[Key, Mapping[str, Mapping[str, Any]]] = {}
    for document in dated:
        places = [(*cell_of(row), row["arm"]) for row in document["rows"]]
        if len(set(places)) < len(places):
            op, model, tokens, arm = next(place for place in places if places.count(place) > 1)
            raise ValueError(f"{op}, {model}, {tokens} tokens, {arm} is measured twice")
        cells |= cells_of(document["rows"])
    if not cells:
        raise ValueError("there are no rows")
    models = [model.id for model in MODELS]
    order = sorted(cells, key=lambda cell: (OPS.index(cell[0]), models.index(cell[1]), cell[2]))
    arms = tuple(arm for arm in ARMS if any(arm in cell for cell in cells.values()))
    return KernelRows(tuple(dated), {cell: cells[cell] for cell in order}, arms)
