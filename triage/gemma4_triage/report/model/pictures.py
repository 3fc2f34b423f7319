"""The pictures of a report, as records: what they show, not how it is drawn."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict

from gemma4_triage.report.model.text import Text


class Record(BaseModel):
    model_config = ConfigDict(frozen=True)


Tone = Literal["neutral", "ok", "bad"]


class Mark(Record):
    """Something at one moment of a lane."""

    at: float
    label: Text
    tone: Tone


class Span(Record):
    """Something that lasted."""

    begin: float
    end: float
    label: Text
    tone: Tone


class Lane(Record):
    name: Text
    spans: tuple[Span, ...] = ()
    marks: tuple[Mark, ...] = ()


class Timeline(Record):
    """unit: of all positions, `s` since `origin` or `step`. end: of the axis, above begin."""

    title: Text
    unit: Literal["s", "step"]
    origin: Text
    begin: float
    end: float
    lanes: tuple[Lane, ...]
    left_out: tuple[Text, ...] = ()


class CellState(StrEnum):
    """What an entry of a page table is. ENTRY: the dump has no lengths to judge it by."""

    LIVE = "live"
    BEHIND = "behind"
    EVICTED = "evicted"
    STALE = "stale"
    OUT = "out"
    OTHER = "other"
    SAME = "same"
    NULL = "null"
    MISSING = "missing"
    ENTRY = "entry"


class Cell(Record):
    """value: None if the dump does not hold it. offends: the probe listed it. right: the id that it should be."""

    value: int | None
    state: CellState
    offends: bool
    right: int | None = None


class GridRow(Record):
    """keys: how long the sequence is, in tokens. One cell per column of the grid."""

    row: int
    request_slot: int | None
    keys: int | None
    cells: tuple[Cell, ...]


class Legend(Record):
    state: CellState
    text: Text


class Grid(Record):
    """A window of a page table or slot list.

    Attributes:
        unit: What an entry counts, `page` or `slot`.
        lower: The first entry that is inside the buffer.
        upper: The first entry that is not any more.
        columns: Which ones, ascending; gaps are left out.
    """

    table: Text
    unit: Text
    lower: int
    upper: int
    buffer: Text
    window: Text
    table_rows: int
    table_columns: int
    columns: tuple[int, ...]
    rows: tuple[GridRow, ...]
    legend: tuple[Legend, ...]
    notes: tuple[Text, ...] = ()
    left_out: tuple[Text, ...] = ()


class Part(Record):
    name: Text
    count: int


class PoolBar(Record):
    """A pool's equation: `parts` and `missing` (negative: too many) make `total`, in tokens."""

    pool: Text
    parts: tuple[Part, ...]
    total: int
    missing: int
    text: Text


class Suspect(Record):
    page: int
    pool: Text
    fault: Text
    owner: Text
    handed_out: Text
    freed: Text
    last_event: Text


class Ledger(Record):
    """Whose pages a leak audit found in the wrong number of places.

    Attributes:
        pools: The equation of each.
        by_owner: How many pages of each owner, the most first.
        by_site: How many pages of each site that handed them out, the most first.
        suspects: The pages.
        history: What the ledger remembers; None if nothing.
        lives: What became of the first suspect pages before, a line per life.
        left_out: What is not shown, in words.
    """

    pools: tuple[PoolBar, ...]
    by_owner: tuple[Part, ...]
    by_site: tuple[Part, ...]
    suspects: tuple[Suspect, ...]
    history: Timeline | None
    lives: tuple[Text, ...] = ()
    left_out: tuple[Text, ...] = ()


class Series(Record):
    """values: one per point of the chart, None where the log says nothing. summary: `peak 0.98`."""

    name: Text
    values: tuple[float | None, ...]
    summary: Text


class Chart(Record):
    """Lines over a log's batch lines, evenly spaced. ticks: the clock at begin, middle and end. top: of the y axis."""

    title: Text
    top: float
    series: tuple[Series, ...]
    ticks: tuple[Text, ...]
