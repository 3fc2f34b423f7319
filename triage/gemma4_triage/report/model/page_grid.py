"""A page table or slot list of a dump as a picture: which rows and columns, and what each entry is.

A table of any size is read in windows around what the probe listed. Which entries count, which a kernel reads and which
are wrong is the replay's own judgement (`replay/call.py`, `replay/damage.py`), made on the rows and columns shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gemma4_dumps.errors import DumpError, UserError
from gemma4_dumps.reader import Dump
from gemma4_dumps.schema import Manifest, Offence
from gemma4_dumps.wording import number_of
from gemma4_triage.inspection.provenance_sentence import SPACE_NAMES
from gemma4_triage.replay.call import UNKNOWN, AttentionCall
from gemma4_triage.replay.damage import Kind, is_null, kinds
from gemma4_triage.replay.geometry import read_geometry
from gemma4_triage.replay.options import ReplayOptions
from gemma4_triage.replay.rebuild import BELONG, QUERY_COUNTS, buffer_bound
from gemma4_triage.report.model.page_window import NoPicture, Window, index_table, is_written, read_window, value_at
from gemma4_triage.report.model.pictures import Cell, CellState, Grid, GridRow, Legend

_LEGEND: dict[CellState, str] = {
    CellState.LIVE: "inside the buffer, and read",
    CellState.BEHIND: "live, and hidden by the window",
    CellState.EVICTED: "the null page where it is legal: behind the window, or in a padded row",
    CellState.STALE: "past the row's length: never read",
    CellState.OUT: "outside the buffer",
    CellState.OTHER: "another page than it should be",
    CellState.SAME: "an id of another pool, of the same number by accident",
    CellState.NULL: "the null page where a key has to be",
    CellState.MISSING: "needed, and not in the table",
    CellState.ENTRY: "an entry; the dump has no lengths to judge it by",
}
_FOREIGN = "inside the buffer, but an id of another pool"


def page_grid(dump: Dump) -> Grid:
    """Raises NoPicture for a dump without such a table, or with one that cannot be read."""
    manifest = dump.manifest
    try:
        window = read_window(dump, index_table(manifest))
    except (DumpError, LookupError) as error:
        raise NoPicture(str(error)) from error
    offences = [offence for offence in manifest.offences if offence.table == window.table]
    if not _about_entries(window, offences):
        raise NoPicture(f"what the probe listed is not in the saved part of {window.table}, or not its entries")
    upper = _upper(manifest, window, offences)
    states, foreign, seen = _states(dump, window, upper)
    rows = tuple(
        GridRow(row=row, request_slot=window.slots[at], keys=window.keys[at], cells=_cells(window, states, at))
        for at, row in enumerate(window.rows)
    )
    texts = _LEGEND | ({CellState.OTHER: _FOREIGN} if foreign else {})
    used = [state for state in _LEGEND if any(cell.state == state for row in rows for cell in row.cells)]
    space = manifest.provenance.buffer_space
    return Grid(
        table=window.table,
        unit="slot" if window.ragged or is_written(window.table) else "page",
        lower=offences[0].lower if offences else 0,
        upper=upper,
        buffer="buffer" if space == "unknown" else f"{SPACE_NAMES.get(space, space)} pool's buffer",
        window=seen,
        table_rows=window.table_rows,
        table_columns=window.table_columns,
        columns=window.columns,
        rows=rows,
        legend=tuple(Legend(state=state, text=texts[state]) for state in used),
        notes=tuple(_notes(manifest, window)),
        left_out=tuple(_left_out(window)),
    )


def _about_entries(window: Window, offences: Sequence[Offence]) -> bool:
    """Say whether a listed offence that is shown has the value of its entry: a probe may also list a table's size."""
    shown = [
        (int(window.ids[window.rows.index(one.row), window.columns.index(one.column)]), one.value)
        for one in offences
        if one.row in window.rows and one.column in window.columns
    ]
    if not shown:
        return not offences or any(0 <= one.row < window.table_rows for one in offences)
    return any(entry in (UNKNOWN, value) for entry, value in shown)


def _upper(manifest: Manifest, window: Window, offences: Sequence[Offence]) -> int:
    slots = window.ragged or is_written(window.table)
    try:
        return buffer_bound(manifest, "slots" if slots else "pages")
    except UserError:
        return offences[0].upper if offences else 0


def _states(dump: Dump, window: Window, upper: int) -> tuple[list[list[CellState]], bool, str]:
    """Return each cell's state; whether the ids are another pool's; what is known of the attention window, in words."""
    manifest = dump.manifest
    call = _call(dump, window, upper)
    if call is None:
        lower = next((offence.lower for offence in manifest.offences if offence.table == window.table), None)
        return _plain_states(window, lower, upper), False, "not known"
    left = call.geometry.window_left
    assumed = any(text.startswith("no window") for text in call.geometry.assumed)
    seen = "not recorded" if assumed and not window.ragged else "none" if left < 0 else f"{left + 1} keys"
    found, live, read, null = kinds(call), call.live, call.read, is_null(call)
    states = [
        [
            _state(Kind(int(kind)), *flags, foreign=call.foreign)
            for kind, *flags in zip(found[at], live[at], read[at], null[at], strict=True)
        ]
        for at in range(len(window.rows))
    ]
    return states, call.foreign, seen


_BAD: dict[Kind, CellState] = {
    Kind.OTHER_PAGE: CellState.OTHER,
    Kind.NULL: CellState.NULL,
    Kind.MISSING: CellState.MISSING,
    Kind.NEGATIVE: CellState.OUT,
    Kind.OUT_OF_RANGE: CellState.OUT,
}


def _state(kind: Kind, live: bool, read: bool, null: bool, foreign: bool) -> CellState:
    if not live:
        return CellState.STALE
    if kind in _BAD:
        return _BAD[kind]
    if null:
        return CellState.EVICTED
    if foreign:
        return CellState.SAME
    return CellState.LIVE if read else CellState.BEHIND


def _plain_states(window: Window, lower: int | None, upper: int) -> list[list[CellState]]:
    """Say without lengths only whether an entry is outside what the probe held it against."""
    if lower is None:
        return [[CellState.ENTRY] * len(window.columns) for _ in window.rows]
    outside = (window.ids != UNKNOWN) & ((window.ids < lower) | (window.ids >= upper))
    return [[CellState.OUT if bad else CellState.ENTRY for bad in row] for row in outside.tolist()]


def _call(dump: Dump, window: Window, upper: int) -> AttentionCall | None:
    """Return the part of the attention call that is shown; None if the dump lacks lengths, page size or a buffer."""
    manifest = dump.manifest
    if any(keys is None for keys in window.keys) or is_written(window.table) or upper <= 0:
        return None
    try:
        geometry = read_geometry(manifest, ReplayOptions())
    except UserError:
        return None
    origin = manifest.provenance
    spaces = (origin.table_space, origin.buffer_space)
    keys = np.array([length or 0 for length in window.keys], np.int64)
    return AttentionCall(
        dump_id=manifest.dump_id,
        table=window.table,
        paged=not window.ragged,
        bound=upper,
        ids=window.ids,
        translated=window.right,
        listed=window.listed,
        key_counts=keys,
        query_counts=np.minimum([_queries(dump, window, row) for row in window.rows], keys),
        request_slots=np.array([-1 if slot is None else slot for slot in window.slots], np.int64),
        table_space=origin.table_space,
        buffer_space=origin.buffer_space,
        foreign="unknown" not in spaces and spaces not in BELONG,
        geometry=geometry,
        columns=np.array(window.columns, np.int64),
    )


def _queries(dump: Dump, window: Window, row: int) -> int:
    if window.ragged:
        return 1
    if (stated := value_at(dump, QUERY_COUNTS, row)) is not None:
        return max(stated, 1)
    ends = "out_cache_loc_indptr"
    begin, end = value_at(dump, ends, row), value_at(dump, ends, row + 1)
    if begin is not None and end is not None:
        return max(end - begin, 1)
    longest = dump.manifest.scalars.get("max_seq_len_q")
    return longest if isinstance(longest, int) and 0 < longest < 2**31 else 1


def _cells(window: Window, states: list[list[CellState]], at: int) -> tuple[Cell, ...]:
    return tuple(
        Cell(
            value=None if (value := int(window.ids[at, column])) == UNKNOWN else value,
            state=state,
            offends=bool(window.listed[at, column]),
            right=_right(window, at, column, value),
        )
        for column, state in enumerate(states[at])
    )


def _right(window: Window, at: int, column: int, value: int) -> int | None:
    """Say what the entry should have been, where the dump says so and it is something else."""
    right = UNKNOWN if window.right is None else int(window.right[at, column])
    return None if right in (UNKNOWN, value) else right


def _notes(manifest: Manifest, window: Window) -> Iterator[str]:
    if manifest.action == "contained" and (lost := manifest.offence_count - int(window.listed.sum())) > 0:
        more = number_of(lost, "more bad entry", "more bad entries")
        yield f"Containment put the null page in place of {more}; what was there is not in the dump."


def _left_out(window: Window) -> list[str]:
    said = []
    for what, shown, total in (
        ("rows", len(window.rows), window.table_rows),
        ("columns", len(window.columns), window.table_columns),
    ):
        if shown < total:
            said.append(f"{shown} of {total} {what} are shown, around the entries that the probe listed")
    return said
