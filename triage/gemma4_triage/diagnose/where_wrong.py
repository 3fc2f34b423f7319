"""Which structure the bad entry of a page table, or of a list of slots, comes from: each is held against its source.

| the bad entry is in       | is held against                               | what is wrong                          |
|---------------------------|-----------------------------------------------|----------------------------------------|
| the sliding layers' table | `translated_page_table`, what the map makes   | the table, where the map says otherwise |
| ... and equals that       | the full layers' table, and the request's row | the map, where the full page is real   |
| the full layers' table    | `request_rows`, the request's row             | the table, where the row says otherwise |
| ... a row of it as a whole | the other requests' rows                     | the table, where it has another's      |
| ... and equals that       | whether the row holds nothing at all          | the row; or which row it is            |
| out_cache_loc             | the row's page for that token, `row_slots`    | the list, where the row says otherwise |
| swa_out_cache_loc         | out_cache_loc                                 | that, where it is no slot of a page;   |
|                           |                                               | the list, where all of it is the same  |

A request slot that is none of the table's, or one that two requests of a batch have, comes before all of these, and
then a length of the row that is not what the batch says, or, where the table ends as the row does, not where the row
has the page of its newest token. Where a source is not in the dump or holds no page either, where the entry is where a
row ends, where it is of a page that this forward was handed out and no probe looked at hand-outs, or where row and
table agree nowhere, so that the row was read for another batch, nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gemma4_dumps.reader import Dump
from gemma4_dumps.schema import Offence
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose.entry_places import (
    FULL,
    LENGTHS,
    ROWS,
    SLOTS,
    SWA_TABLE,
    TRANSLATED,
    WRITE_LISTS,
    WRITES,
    EntryPlaces,
)
from gemma4_triage.diagnose.evidence import cell, said, tensor_or_none
from gemma4_triage.finding import Evidence

ROW_SLOTS = "row_slots"
BELIEVED, ROWS_THERE_ARE = "believed_lengths", "rows_of_requests"
_ENOUGH = 3
"""Of how many pages a row tells whose it is."""
_FREE_LISTS = {"full": Structure.FULL_FREE_LIST, "swa": Structure.SWA_FREE_LIST}


@dataclass(frozen=True)
class Wrong:
    """Where a bad entry comes from.

    Attributes:
        structure: What is wrong; None where the dump does not say.
        defect: In which way.
        proof: The source that says otherwise; empty where nothing was held against the entry.
        handed_out: Whether this forward writes there, and no probe looked at what was handed out: it may be that.
        unsure: Whether what stands beside the entry contradicts itself: the row was read for another batch, is
            another's than the keys that are stored, or does not have the newest token where the length says.
    """

    structure: Structure | None
    defect: Defect | None = None
    proof: tuple[Evidence, ...] = ()
    handed_out: bool = False
    unsure: bool = False


def where_wrong(dump: Dump, bad: Offence | None = None) -> Wrong:
    """Return where the first bad entry of a page-table dump, or `bad`, comes from."""
    if bad is None and not dump.manifest.offences:
        return Wrong(None)
    return _Source(dump, bad or dump.manifest.offences[0]).find()


def drafts_page(dump: Dump) -> int | None:
    """Return where the page begins that all bad entries of a target's verification are of, behind the batch's lengths.

    None where an entry is of another page, or there are no drafts.
    """
    manifest, page = dump.manifest, dump.manifest.page_size or 0
    lengths, writes = tensor_or_none(dump, LENGTHS), tensor_or_none(dump, WRITES)
    listed = [bad for bad in manifest.offences if bad.table in ("page_table", "swa_page_table")]
    if manifest.forward_mode != "TARGET_VERIFY" or manifest.role != "target" or page < 1 or lengths is None:
        return None
    if writes is None or writes.ndim != 2 or not listed or len(listed) != manifest.offence_count:
        return None
    drafts, begins = writes.shape[1], [bad.column * page for bad in listed]
    if any(not 0 <= bad.row < lengths.shape[0] for bad in listed):
        return None
    own = [int(lengths[bad.row]) - drafts for bad in listed]
    return begins[0] if all(begin >= length for begin, length in zip(begins, own, strict=True)) else None


def row_has_another(dump: Dump) -> bool:
    """Return whether the request's own row has another slot, of a page, for the token of a target's first bad entry."""
    if not dump.manifest.offences or dump.manifest.role == "draft":
        # A draft counts its tokens otherwise.
        return False
    return _Source(dump, dump.manifest.offences[0]).has_another_slot()


class _Source(EntryPlaces):
    """One bad entry, and what is wrong by the tensors that it can be held against."""

    def has_another_slot(self) -> bool:
        """Return whether the row has another slot for the entry's token, which is in a page."""
        slot = self._at(ROW_SLOTS)
        return slot is not None and slot >= self._page_size and slot != self._bad.value

    def find(self) -> Wrong:
        of_slot = self._of_request_slot()
        if of_slot is not None and not (of_slot.unsure and self._is_not_as_translated()):
            return of_slot
        of_length = self._of_length()
        if of_length is not None:
            return of_length
        match self._bad.table:
            case "swa_page_table":
                return self._of_swa_table()
            case "page_table":
                return self._of_full_table()
            case "out_cache_loc":
                return self._of_writes()
            case "swa_out_cache_loc":
                return self._of_swa_writes()
            case _:
                return Wrong(None)

    def _is_not_as_translated(self) -> bool:
        """Return whether the map makes another page of the full table's entry, whosever row that is of."""
        to = self._at(TRANSLATED) if self._bad.table == "swa_page_table" else None
        return to is not None and 0 < to != self._bad.value

    def _of_request_slot(self) -> Wrong | None:
        slots = tensor_or_none(self._dump, SLOTS)
        row = self._bad.row
        if slots is None or slots.ndim != 1 or not 0 <= row < slots.shape[0]:
            return None
        slot = int(slots[row])
        if slot < 0:
            proof = (cell(self._dump, SLOTS, (row,), "the request slot of this row, which no table has"),)
            return Wrong(Structure.ROW_INDICES, Defect.NEGATIVE, proof)
        if slot >= self._dump.manifest.extents.get(ROWS_THERE_ARE, slot + 1):
            proof = (
                cell(self._dump, SLOTS, (row,), "the request slot of this row, which is past the table"),
                said(self._dump, f"extents.{ROWS_THERE_ARE}", "rows that req_to_token has"),
            )
            return Wrong(Structure.ROW_INDICES, Defect.PAST_END, proof)
        if (of_another := self._of_another_row(slots)) is not None:
            return of_another
        if self._rows_of_another_batch(row) or self._stores_elsewhere():
            return Wrong(None, self._defect(), unsure=True)
        twice = [number for number, one in enumerate(slots.tolist()) if one == slot > 0]
        if self._dump.manifest.role == "target" and len(twice) > 1:
            if any(self._rows_of_another_batch(number) for number in twice):
                return Wrong(None, self._defect(), unsure=True)
            proof = (cell(self._dump, SLOTS, (row,), "the request slot of this row, which another row has too"),)
            return Wrong(Structure.ROW_INDICES, Defect.FOREIGN, proof)
        held = self._at(ROWS, whole_row=True)
        if held is not None and held.size and not held.any():
            proof = (cell(self._dump, SLOTS, (row,), "the request slot of this row, whose row holds nothing at all"),)
            return Wrong(Structure.ROW_INDICES, Defect.STALE, proof)
        return None

    def _of_another_row(self, slots: Any) -> Wrong | None:
        """Return what says that the full table was filled, at the bad entry's row, from another request's row.

        Where the server was stopped on the spot: a batch that goes on may have other request slots when it is read.
        """
        table, rows, row = tensor_or_none(self._dump, FULL), tensor_or_none(self._dump, ROWS), self._bad.row
        if table is None or rows is None or table.ndim != 2 or table.shape != rows.shape or len(slots) != len(rows):
            return None
        if self._dump.manifest.action != "trapped" or self._bad.table not in (FULL, "swa_page_table"):
            return None
        sources = [
            [
                other
                for other in range(len(rows))
                if (table[number] == rows[other])[: self._live(table.shape[1], number)].all()
            ]
            for number in range(len(rows))
        ]
        if len(sources[row]) != 1 or sources[row] == [row] or not table[row, : self._live(table.shape[1])].any():
            return None
        (other,) = sources[row]
        proof = (
            cell(self._dump, SLOTS, (row,), "the request slot of this row"),
            cell(self._dump, SLOTS, (other,), "the one whose row the table has there"),
        )
        every = sorted(one[0] if len(one) == 1 else number for number, one in enumerate(sources) if one)
        return Wrong(Structure.FULL_TABLE, Defect.SWAPPED if every == list(range(len(rows))) else Defect.FOREIGN, proof)

    def _rows_of_another_batch(self, row: int) -> bool:
        """Return whether the full table and a request's row begin with no page in common at the same place.

        Where a row has none to tell, the whole batch's are asked. With overlap the next batch may have its request
        slots where this one had them, when a dump is written.
        """
        table, rows = tensor_or_none(self._dump, FULL), tensor_or_none(self._dump, ROWS)
        if table is None or rows is None or table.ndim != 2 or table.shape != rows.shape or self._is_of_now():
            return False
        telling = self._telling(table, rows, [row]) or self._telling(table, rows, range(table.shape[0]))
        # Behind its end a row has what an earlier request left there, and may agree by chance.
        return bool(telling) and not any(telling[:_ENOUGH])

    def _is_of_now(self) -> bool:
        """Return whether the row was read at once, and has all pages in which this forward stores its keys."""
        rows, stored = tensor_or_none(self._dump, ROWS), self._written_pages()
        if self._dump.manifest.action != "trapped" or rows is None or not 0 <= self._bad.row < len(rows):
            return False
        return len(stored) > 1 and min(stored) > 0 and stored <= set(rows[self._bad.row].tolist())

    def _stores_elsewhere(self) -> bool:
        """Return whether this forward stores the row's keys in several pages of which the row has none.

        Of a row that is cut off before its newest token nothing is known there: it is as wide as the kernel's length.
        """
        rows, stored = tensor_or_none(self._dump, ROWS), {page for page in self._written_pages() if page > 0}
        if rows is None or rows.ndim != 2 or not 0 <= self._bad.row < rows.shape[0]:
            return False
        believed = tensor_or_none(self._dump, BELIEVED)
        lengths = [] if believed is None or believed.ndim != 1 else believed.tolist()
        if self._bad.row < len(lengths) and lengths[self._bad.row] > rows.shape[1] * self._page_size:
            return False
        return len(stored) > 1 and not stored & set(rows[self._bad.row].tolist())

    def _telling(self, table: Any, rows: Any, which: Iterable[int]) -> list[bool]:
        """Return of the live columns where these requests' rows have a page whether the table has the same one.

        The bad entry is left out.
        """
        pairs = [
            (int(table[row, at]), int(rows[row, at]))
            for row in which
            if 0 <= row < table.shape[0]
            for at in range(self._live(table.shape[1], row))
            if (row, at) != (self._bad.row, self._bad.column)
        ]
        return [one == other for one, other in pairs if other > 0]

    def _of_length(self) -> Wrong | None:
        told, believed = tensor_or_none(self._dump, LENGTHS), tensor_or_none(self._dump, BELIEVED)
        row = self._bad.row
        if told is None or not 0 <= row < told.shape[0]:
            return None
        given = told.tolist()
        if believed is not None and believed.shape == told.shape:
            expected, source, where, meaning = believed.tolist(), BELIEVED, (row,), "keys of that row by the batch"
        else:
            expected = [self._ends_at(number, one) for number, one in enumerate(given)]
            source, where = ROWS, (row, (expected[row] - 1) // self._page_size)
            meaning = f"has the page of its newest token, at which its table ends: it has {expected[row]} keys"
        if given[row] == expected[row]:
            return None
        if source == ROWS and not self._built_to(expected[row]):
            # The batch's own length, or where the token is stored, may be what is wrong.
            return Wrong(None, self._defect(), unsure=True)
        proof = (
            cell(self._dump, LENGTHS, (row,), "keys of that row, as the kernel is told"),
            cell(self._dump, source, where, meaning),
        )
        others = [number for number, value in enumerate(expected) if number != row and value == given[row]]
        defect = None
        if given[row] <= 0:
            defect = Defect.NEGATIVE if given[row] else Defect.ZERO
        elif given[row] > self._columns() * self._page_size:
            defect = Defect.PAST_END
        elif any(given[number] == expected[row] for number in others):
            defect = Defect.SWAPPED
        elif abs(given[row] - expected[row]) == 1:
            defect = Defect.OFF_BY_ONE
        elif others:
            defect = Defect.FOREIGN
        return Wrong(Structure.KERNEL_LENGTHS, defect, proof)

    def _ends_at(self, row: int, told: int) -> int:
        """Return how many keys a request has by where its row has the page of its newest token; `told` if not known."""
        writes, rows = tensor_or_none(self._dump, WRITES), tensor_or_none(self._dump, ROWS)
        if (
            writes is None
            or rows is None
            or writes.ndim != 2
            or rows.ndim != 2
            or not writes.size
            or self._dump.manifest.role != "target"
        ):
            return told
        if not row < min(writes.shape[0], rows.shape[0]):
            return told
        page, offset = divmod(int(writes[row, -1]), self._page_size)
        places = [column for column, one in enumerate(rows[row].tolist()) if one == page and page > 0]
        return places[0] * self._page_size + offset + 1 if len(places) == 1 else told

    def _built_to(self, keys: int) -> bool:
        """Return whether the full table has nothing of the bad entry's row behind so many keys, and the row has.

        With a wrong length of the batch, which the table is built by, it would have what stands there.
        """
        table, rows = tensor_or_none(self._dump, FULL), tensor_or_none(self._dump, ROWS)
        if table is None or rows is None or table.ndim != 2 or table.shape != rows.shape:
            return False
        built, held = table[self._bad.row].tolist(), rows[self._bad.row].tolist()
        behind = range(-(-keys // self._page_size), self._live(len(held)))
        return self._bad.column in behind and held[self._bad.column] > 0 and all(held[at] != built[at] for at in behind)

    def _columns(self) -> int:
        """Return how many columns the full layers' table has; as many as can be where the dump has none."""
        table = tensor_or_none(self._dump, FULL)
        return 1 << 60 if table is None or table.ndim != 2 else table.shape[1]

    def _of_swa_table(self) -> Wrong:
        to, full = self._at(TRANSLATED), self._at(FULL)
        if to is None or full is None:
            return Wrong(Structure.SWA_TABLE if self._is_of_buffer("swa") else None, self._defect(full))
        if to != self._bad.value:
            proof = self._said(TRANSLATED, "what the map makes of it")
            return Wrong(Structure.SWA_TABLE if to > 0 else None, self._defect(full), proof)
        if full < 1:
            return self._of_full_table()
        if (twice := self._twice_in_row(full)) is not None:
            return twice
        if self._is_written_now():
            # The allocator wrote the map in the call that handed the page out.
            return Wrong(None, self._defect(full), handed_out=True)
        proof = self._said(FULL, "the full page that the map was asked for: a real one")
        return Wrong(Structure.SWA_MAPPING, self._defect(full), proof)

    def _of_full_table(self) -> Wrong:
        held = self._at(ROWS)
        if held is None:
            return Wrong(None, self._defect())
        value = self._bad.value if self._bad.table == FULL else self._at(FULL)
        if held != value:
            if self._is_written_now() and value in self._written_pages():
                # The table has what was handed out; the row may have been written since.
                return Wrong(None, self._defect(), handed_out=True)
            proof = self._said(ROWS, "what the request's row says")
            # Neither is a page: which of them was wrong first is not known.
            return Wrong(Structure.FULL_TABLE if held > 0 else None, self._defect(), proof)
        if self._at_the_end() and not self._was_written():
            # A length that reaches further than what was allocated looks alike.
            return Wrong(None, self._defect())
        if self._is_written_now():
            return Wrong(None, self._defect(), handed_out=True)
        return Wrong(
            Structure.REQUEST_ROW, self._defect(), self._said(ROWS, "the request's own row, which says so too")
        )

    def _twice_in_row(self, page: int) -> Wrong | None:
        """Return what says that the row has this page at an earlier or a later place too; no row has a page twice."""
        held = self._at(ROWS, whole_row=True)
        if held is None or self._at(ROWS) != page:
            return None
        places = [column for column, one in enumerate(held.tolist()) if one == page and column != self._bad.column]
        if not places:
            return None
        twice = cell(self._dump, ROWS, (self._bad.row, places[0]), "the same page, at another place of the row")
        return Wrong(
            Structure.REQUEST_ROW, Defect.DUPLICATE, (*self._said(ROWS, "the page that the row has there"), twice)
        )

    def _of_writes(self) -> Wrong:
        lists, lengths, page = tensor_or_none(self._dump, WRITES), tensor_or_none(self._dump, LENGTHS), self._page_size
        rows = ROWS if tensor_or_none(self._dump, ROWS) is not None else FULL
        table, row, column = tensor_or_none(self._dump, rows), self._bad.row, self._bad.column
        if lists is not None and lists.ndim == 1 and not self._hand_outs_are_watched() and self._at(ROW_SLOTS) is None:
            # Of a prefill's list the row has the same, as the hand-out gave it.
            return Wrong(None, self._defect(), handed_out=True)
        if lists is None or lists.ndim != 2 or lengths is None or table is None or not 0 <= row < len(lengths):
            return Wrong(Structure.WRITE_LOCATIONS, self._defect())
        at = int(lengths[row]) - lists.shape[1] + column
        if not (0 <= at // page < table.shape[1] and row < table.shape[0]):
            return Wrong(Structure.WRITE_LOCATIONS, self._defect())
        held = int(table[row, at // page])
        if held * page + at % page == self._bad.value or held < 1:
            # The row was written from the same hand-out.
            return Wrong(None, self._defect())
        if (of_row := self._of_rows_entry()) is not None:
            return of_row
        if self._bad.value % page == at % page and not self._hand_outs_are_watched():
            # Right within its page, as what hands out whole pages leaves it; the row has the page since before.
            return Wrong(None, self._defect(), handed_out=True)
        proof = (cell(self._dump, rows, (row, at // page), "the page that the row has for that token"),)
        return Wrong(Structure.WRITE_LOCATIONS, self._defect(), proof)

    def _of_rows_entry(self) -> Wrong | None:
        """Return what says that the row has this very slot for the token, in the midst of a page."""
        if self._at(ROW_SLOTS) != self._bad.value:
            return None
        lists = tensor_or_none(self._dump, WRITES)
        if not self._hand_outs_are_watched():
            return Wrong(None, self._defect(), handed_out=True)
        if lists is None or lists.ndim != 2 or lists.shape[1] < 2:
            # A decode's row is written from the list, a verification's list is read from the row.
            return Wrong(None, self._defect())
        return Wrong(Structure.REQUEST_ROW, self._defect(), self._said(ROW_SLOTS, "what the row has for that token"))

    def _of_swa_writes(self) -> Wrong:
        full = self._at(WRITES)
        if self._is_untranslated():
            proof = self._said(WRITES, "the full slot, which the whole list still has")
            proof += self._translated_elsewhere()
            return Wrong(Structure.WRITE_LOCATIONS, Defect.OTHER_SPACE, proof)
        # A full slot that is real was translated as the map has it, which the allocator wrote in the same call.
        return Wrong(Structure.WRITE_LOCATIONS if full is not None and full < self._page_size else None, self._defect())

    def _is_untranslated(self) -> bool:
        """Return whether sliding layers are to write where the full ones do, on several pages."""
        full, swa = tensor_or_none(self._dump, WRITES), tensor_or_none(self._dump, self._bad.table)
        if full is None or swa is None or full.shape != swa.shape or not (full == swa).all():
            return False
        return len({int(slot) // self._page_size for slot in swa.flatten()}) > 1

    def _translated_elsewhere(self) -> tuple[Evidence, ...]:
        """Return what says that the map makes another page of the entry's: the sliding layers' table has that."""
        table, lengths, row = tensor_or_none(self._dump, SWA_TABLE), tensor_or_none(self._dump, LENGTHS), self._bad.row
        if table is None or lengths is None or not 0 <= row < min(len(lengths), table.shape[0]):
            return ()
        token = int(lengths[row]) - self._stored(row) + self._bad.column
        at = (row, token // self._page_size)
        if not 0 <= at[1] < table.shape[1] or table[at] in (0, self._bad.value // self._page_size):
            return ()
        return (cell(self._dump, SWA_TABLE, at, "the page that this token has in the sliding-window pool"),)

    def _at_the_end(self) -> bool:
        """Return whether the row holds nothing from this entry on."""
        held = tensor_or_none(self._dump, ROWS)
        return held is not None and not held[self._bad.row, self._bad.column : self._live(held.shape[1])].any()

    def _was_written(self) -> bool:
        """Return whether this token's keys are to be stored in a page that the row has nowhere."""
        writes, rows = tensor_or_none(self._dump, WRITES), tensor_or_none(self._dump, ROWS)
        row = self._bad.row
        if writes is None or rows is None or writes.ndim != 2 or not (row < writes.shape[0] and row < rows.shape[0]):
            return False
        pages = set((writes[row] // self._page_size).tolist())
        return bool(pages) and min(pages) > 0 and not pages & set(rows[row].tolist())

    def _is_written_now(self) -> bool:
        """Return whether this forward stores keys at the entry's place, which was handed out for it.

        With `swa-allocator` attached a hand-out of what is no page has a dump of its own.
        """
        row = self._bad.row
        if self._hand_outs_are_watched():
            return False
        lengths, tokens = tensor_or_none(self._dump, LENGTHS), self._stored(row)
        if lengths is None or not 0 <= row < len(lengths):
            return False
        length = int(lengths[row])
        return (length - tokens) // self._page_size <= self._bad.column <= (length - 1) // self._page_size

    def _may_be_old(self) -> bool:
        """Return whether a table has nothing where this forward begins a page: one of the step before had nothing yet.

        So it may be that one, and the entry not emptied. What it has before that place tells nothing.
        """
        lengths, row, table = tensor_or_none(self._dump, LENGTHS), self._bad.row, self._bad.table
        if table not in (FULL, "swa_page_table") or lengths is None or not 0 <= row < len(lengths):
            return False
        # The first token that this forward stores.
        first = int(lengths[row]) - self._stored(row)
        return self._stored(row) > 0 and self._bad.column * self._page_size >= first

    def _defect(self, full: int | None = None) -> Defect | None:
        value = self._bad.value
        if value == 0:
            return None if self._may_be_old() else Defect.ZERO
        if value < 0:
            return Defect.NEGATIVE
        if full is not None and value == full:
            return Defect.OTHER_SPACE
        return Defect.PAST_END if value >= self._bad.upper else None


def index_list(dump: Dump) -> Structure | None:
    """Return the list that holds a page-table dump's first bad index; None if the dump does not say which it is."""
    manifest = dump.manifest
    if manifest.offences and manifest.offences[0].table in WRITE_LISTS:
        return Structure.WRITE_LOCATIONS
    match manifest.provenance.buffer_space:
        case "swa":
            return Structure.SWA_TABLE
        case "full":
            return Structure.FULL_TABLE
        case _:
            return None


def free_list(dump: Dump) -> Structure | None:
    """Return the free list of the pool that a dump of an allocator is about; None if it names no pool."""
    return free_list_of_pool(dump.manifest.pool_kind or "")


def free_list_of_pool(pool: str) -> Structure | None:
    """Return the free list of the pool of this name; None for another name."""
    return _FREE_LISTS.get(pool)


def are_free(dump: Dump) -> bool | None:
    """Return whether every page that a dump of an allocator lists is on its pool's free list; None if it lacks that."""
    manifest = dump.manifest
    pool = "swa" if manifest.provenance.buffer_space == "swa" else "full"
    listed = tensor_or_none(dump, f"free_pages_{pool}")
    if listed is None or not manifest.offences:
        return None
    pages = set(listed.ravel().tolist())
    size = 1 if manifest.offences[0].table == "pages_lost" else manifest.page_size or 1
    return all(bad.value // size in pages for bad in manifest.offences)
