"""What the tensors of a page-table dump have at the place of one bad entry, and what its forward stores there."""

from __future__ import annotations

from typing import Any

from gemma4_dumps.reader import Dump
from gemma4_dumps.schema import Offence
from gemma4_triage.diagnose.evidence import cell, tensor_or_none
from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.finding import Evidence

FULL, WRITES, SWA_TABLE = "page_table", "out_cache_loc", "swa_page_table"
WRITE_LISTS = (WRITES, "swa_out_cache_loc")
TRANSLATED, ROWS, SLOTS, LENGTHS = "translated_page_table", "request_rows", "request_slots", "cache_seqlens"


class EntryPlaces:
    """One bad entry of a dump, and its place in the dump's other tensors."""

    def __init__(self, dump: Dump, bad: Offence) -> None:
        self._dump, self._bad = dump, bad

    @property
    def _page_size(self) -> int:
        return self._dump.manifest.page_size or 1

    def _is_of_buffer(self, space: str) -> bool:
        return self._dump.manifest.provenance.buffer_space == space

    def _at(self, name: str, whole_row: bool = False) -> Any:
        """Return the value at the entry's place of another tensor; None if there is no such place."""
        table, place = tensor_or_none(self._dump, name), self._place(name)
        if place is None or (whole_row and len(place) != 2):
            return None
        return table[place[0], : self._live(table.shape[1])] if whole_row else int(table[place])

    def _place(self, name: str) -> tuple[int, ...] | None:
        """Return where the entry's place is in another tensor, a table or a list in which rows follow each other."""
        table, begins = tensor_or_none(self._dump, name), tensor_or_none(self._dump, f"{name}_indptr")
        row, column = self._bad.row, self._bad.column
        if table is None or row < 0 or column < 0:
            return None
        if table.ndim == 2:
            return (row, column) if row < table.shape[0] and column < table.shape[1] else None
        if table.ndim != 1 or begins is None or begins.ndim != 1 or row + 1 >= len(begins):
            return None
        at = int(begins[row]) + column
        return (at,) if 0 <= at < min(int(begins[row + 1]), len(table)) else None

    def _live(self, columns: int, row: int | None = None) -> int:
        """Return how many columns of a row are live; of the bad entry's if no row is named."""
        lengths, row = tensor_or_none(self._dump, LENGTHS), self._bad.row if row is None else row
        if lengths is None or not 0 <= row < len(lengths):
            return columns
        return min(max(-(-int(lengths[row]) // self._page_size), 1), columns)

    def _hand_outs_are_watched(self) -> bool:
        manifest = self._dump.manifest
        return Guards(manifest.dump_id, "guards.", manifest.guards).attached("swa-allocator") is not None

    def _written_pages(self) -> set[int]:
        """Return the full pages in which this forward stores keys of the bad entry's row."""
        writes, begins = tensor_or_none(self._dump, WRITES), tensor_or_none(self._dump, f"{WRITES}_indptr")
        row, count = self._bad.row, self._stored(self._bad.row)
        if writes is None or not count:
            return set()
        slots = writes[row] if writes.ndim == 2 else writes[int(begins[row]) : int(begins[row + 1])]
        return set((slots // self._page_size).ravel().tolist())

    def _stored(self, row: int) -> int:
        """Return of how many tokens of a row this forward stores the keys."""
        writes, begins = tensor_or_none(self._dump, WRITES), tensor_or_none(self._dump, f"{WRITES}_indptr")
        if writes is None or writes.ndim not in (1, 2) or row < 0:
            return 0
        if writes.ndim == 2:
            return writes.shape[1] if row < writes.shape[0] else 0
        return int(begins[row + 1] - begins[row]) if begins is not None and 0 <= row < len(begins) - 1 else 0

    def _said(self, name: str, meaning: str) -> tuple[Evidence, ...]:
        place = self._place(name)
        return () if place is None else (cell(self._dump, name, place, meaning),)


def led_alone(dump: Dump) -> tuple[int, int, int] | None:
    """Return the full slot, and to which SWA page the others of its page lead, and how many; None where none do.

    Of a list of sliding layers' writes (swa_out_cache_loc): pages are handed out whole, so that one slot which leads
    elsewhere than those beside it was given right.
    """
    bad, page = dump.manifest.offences[0] if dump.manifest.offences else None, dump.manifest.page_size or 1
    full, swa = (tensor_or_none(dump, name) for name in WRITE_LISTS)
    if bad is None or bad.table != WRITE_LISTS[1] or full is None or swa is None or full.shape != swa.shape:
        return None
    bounds = tensor_or_none(dump, f"{WRITE_LISTS[1]}_indptr")
    if full.ndim == 1 and bounds is not None and bounds.ndim == 1 and 0 <= bad.row < len(bounds) - 1:
        full, swa = (one[int(bounds[bad.row]) : int(bounds[bad.row + 1])] for one in (full, swa))
    elif full.ndim == 2 and 0 <= bad.row < len(full):
        full, swa = full[bad.row], swa[bad.row]
    else:
        return None
    # Where the server goes on, the list has the null page in its place by now.
    if not 0 <= bad.column < len(full) or int(swa[bad.column]) not in (bad.value, 0):
        return None
    own = int(full[bad.column])
    beside = [at for at in range(len(full)) if at != bad.column and int(full[at]) // page == own // page > 0]
    to = {(int(swa[at]) // page, int(swa[at]) % page == int(full[at]) % page) for at in beside}
    ((led, in_place),) = to if len(to) == 1 else ((0, False),)
    return (own, led, len(beside)) if in_place and led > 0 and led != bad.value // page else None
