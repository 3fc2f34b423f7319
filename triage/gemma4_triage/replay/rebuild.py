"""From a dump to the attention call that it is about. A dump may come from anywhere: nothing in it is trusted.

| in the dump                          | becomes                                                                  |
|--------------------------------------|--------------------------------------------------------------------------|
| page_table, swa_page_table           | page ids, a row per request; `cache_seqlens` says how many count         |
| kv_indices, window_kv_indices        | token slots, ragged by `<name>_indptr`                                   |
| translated_page_table                | what a page table should have been; page_table, of SWA ids on full pages |
| offences                             | what entries held before containment replaced them                       |
| query_counts, out_cache_loc_indptr   | queries of each row; else scalars.max_seq_len_q                          |
"""

from __future__ import annotations

import numpy as np

from gemma4_dumps.errors import DumpUnreadable
from gemma4_dumps.reader import Dump
from gemma4_dumps.schema import Manifest
from gemma4_dumps.wording import number_of
from gemma4_triage.errors import EnvironmentCannot, NothingChecked
from gemma4_triage.inspection.offending_rows import TRANSLATED
from gemma4_triage.replay.call import UNKNOWN, AttentionCall
from gemma4_triage.replay.geometry import read_geometry
from gemma4_triage.replay.integers import FARTHEST, HINT, integers
from gemma4_triage.replay.options import ReplayOptions

MAX_ENTRIES, MAX_ROWS = 4 * 1024**2, 64 * 1024
QUERY_COUNTS = "query_counts"

_FULL_TABLE, _SWA_TABLE = "page_table", "swa_page_table"
BELONG = {("full", "full"), ("swa", "swa"), ("full", "draft"), ("draft", "draft")}


def rebuild(dump: Dump, options: ReplayOptions) -> AttentionCall:
    """Return the call whose table the dump's offences are in.

    Raises:
        NothingChecked: the dump has no table that attention reads, or not its lengths or its buffer's size.
        EnvironmentCannot: it is too large to rebuild.
        DumpError: its tensors cannot be read, or give lengths that nothing in it can have.
    """
    manifest = dump.manifest
    name = table_at_fault(manifest)
    ragged = f"{name}_indptr" in manifest.tensors
    geometry = read_geometry(manifest, options)
    bound = buffer_bound(manifest, "slots" if ragged else "pages")
    notes: list[str] = []
    unit = 1 if ragged else geometry.page_size
    ids, key_counts = _ragged(dump, name, notes) if ragged else _paged(dump, name, unit, notes)
    listed = np.zeros(ids.shape, bool)
    for offence in manifest.offences:
        inside = 0 <= offence.row < ids.shape[0] and 0 <= offence.column < ids.shape[1]
        if offence.table == name and inside and manifest.verdict != "table_too_narrow":
            listed[offence.row, offence.column] = True
            if manifest.action == "contained":
                ids[offence.row, offence.column] = min(max(offence.value, -FARTHEST), FARTHEST)
    if manifest.action == "contained" and (lost := manifest.offence_count - int(listed.sum())) > 0:
        holds = number_of(lost, "entry holds", "entries hold")
        notes.append(f"{holds} the null page since containment; what was there is not in the dump")
    origin = manifest.provenance
    spaces = (origin.table_space, origin.buffer_space)
    call = AttentionCall(
        dump_id=manifest.dump_id,
        table=name,
        paged=not ragged,
        bound=bound,
        ids=ids,
        translated=None if ragged else _translated(dump, name, ids.shape),
        listed=listed,
        key_counts=key_counts,
        query_counts=_query_counts(dump, key_counts, ragged, notes),
        request_slots=_per_row(dump, "request_slots", ids.shape[0], -1),
        table_space=origin.table_space,
        buffer_space=origin.buffer_space,
        foreign="unknown" not in spaces and spaces not in BELONG,
        geometry=geometry,
        notes=tuple(notes),
    )
    if not key_counts.any():
        raise NothingChecked(f"no row of {name} has a key", HINT)
    return call


def table_at_fault(manifest: Manifest) -> str:
    origin = manifest.provenance.table_origin.rpartition(".")[2]
    named = [offence.table for offence in manifest.offences] + [origin]
    name = next((table for table in named if table in manifest.tensors), None)
    if name is None:
        raise NothingChecked(f"no table of an attention call is in this dump: rule {manifest.rule}", HINT)
    if name.endswith("cache_loc"):
        raise NothingChecked(f"{name} holds locations that are written: attention reads nothing through it", HINT)
    if f"{name}_indptr" in manifest.tensors or ("cache_seqlens" in manifest.tensors and "page_table" in name):
        return name
    raise NothingChecked(f"{name} is no page table with sequence lengths: rule {manifest.rule}", HINT)


def buffer_bound(manifest: Manifest, noun: str) -> int:
    stated = manifest.extents.get(f"{noun}_in_buffer")
    if stated is None and manifest.verdict != "table_too_narrow" and manifest.offences:
        stated = manifest.offences[0].upper
    if stated is None or not 0 < stated < 2**31:
        said = "says nothing of" if stated is None else f"gives {stated} {noun} to"
        raise NothingChecked(f"the dump {said} the buffer that its layer reads: there was none to attend to", HINT)
    return stated


def _paged(dump: Dump, name: str, unit: int, notes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return ids [rows, columns that a row needs or has], key counts [rows]."""
    table, counts = integers(dump, name, 2), np.maximum(integers(dump, "cache_seqlens", 1), 0)
    rows = _row_count(min(table.shape[0], counts.shape[0]))
    if rows < counts.shape[0]:
        notes.append(f"not in the dump: {number_of(counts.shape[0] - rows, 'row')} of {name}")
    needed = int(-(-counts[:rows].max(initial=0) // unit))
    if rows * needed > MAX_ENTRIES:
        if rows * table.shape[1] <= MAX_ENTRIES:
            longest = int(counts[:rows].argmax())
            raise _contradiction(
                f"cache_seqlens[{longest}] is {number_of(counts[longest], 'key')}, {number_of(needed, 'page')}, and "
                f"{name} has {number_of(table.shape[1], 'column')}"
            )
        raise _too_large(f"{rows} rows of up to {needed} pages", f"{MAX_ENTRIES} entries")
    ids = np.full((rows, needed), UNKNOWN, np.int64)
    ids[:, : min(needed, table.shape[1])] = table[:rows, :needed]
    return ids, counts[:rows]


def _ragged(dump: Dump, name: str, notes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Do as `_paged`, for a list. An indptr may be what is wrong: a row that ends before it begins has no keys."""
    slots, indptr = integers(dump, name, 1), np.maximum(integers(dump, f"{name}_indptr", 1), 0)
    counts = np.maximum(np.diff(indptr), 0)
    if (np.diff(indptr) < 0).any():
        notes.append(f"rows of {name} that end before they begin have no keys")
    needed = int(counts.max(initial=0))
    if _row_count(counts.shape[0]) * needed > MAX_ENTRIES:
        if needed > slots.shape[0]:
            raise _contradiction(
                f"a row of {name} has {needed} slots by its indptr, and {name} {slots.shape[0]} in all"
            )
        raise _too_large(f"{counts.shape[0]} rows of up to {needed} slots", f"{MAX_ENTRIES} entries")
    ids = np.full((counts.shape[0], needed), UNKNOWN, np.int64)
    for row, (begin, count) in enumerate(zip(indptr[:-1].tolist(), counts.tolist(), strict=True)):
        there = slots[begin : begin + count]
        ids[row, : there.shape[0]] = there
    return ids, counts


def right_table(manifest: Manifest, name: str) -> str | None:
    """Return the tensor that says what table `name` should have been. None if the dump does not say."""
    if TRANSLATED in manifest.tensors:
        return TRANSLATED
    # SWA ids on the full pool's buffer: the backend's own table of full ids would have been the right one.
    swapped = name == _SWA_TABLE and manifest.provenance.buffer_space == "full"
    return _FULL_TABLE if swapped and _FULL_TABLE in manifest.tensors else None


def _translated(dump: Dump, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
    """Say what table `name` should have been. None if the dump does not say."""
    right = right_table(dump.manifest, name)
    if right is None:
        return None
    found = integers(dump, right, 2)[: shape[0], : shape[1]]
    whole = np.full(shape, UNKNOWN, np.int64)
    whole[: found.shape[0], : found.shape[1]] = found
    return whole


def _per_row(dump: Dump, name: str, rows: int, default: int) -> np.ndarray:
    whole = np.full(rows, default, np.int64)
    if name in dump.manifest.tensors:
        found = integers(dump, name, 1)[:rows]
        whole[: found.shape[0]] = found
    return whole


def _query_counts(dump: Dump, key_counts: np.ndarray, ragged: bool, notes: list[str]) -> np.ndarray:
    rows, mode, manifest = key_counts.shape[0], dump.manifest.forward_mode, dump.manifest
    if ragged:
        # What the other queries of a verify or an extend see of it a mask says, which is not in the dump.
        counts = np.ones(rows, np.int64)
        if mode not in (None, "DECODE"):
            notes.append(f"of {mode} the replay has one query a row, which sees the whole list")
    elif QUERY_COUNTS in manifest.tensors:
        counts = _per_row(dump, QUERY_COUNTS, rows, 1)
    elif "out_cache_loc_indptr" in manifest.tensors:
        indptr = integers(dump, "out_cache_loc_indptr", 1)
        counts = np.ones(rows, np.int64)
        counts[: max(min(rows, indptr.shape[0] - 1), 0)] = np.diff(indptr)[:rows]
    else:
        stated = manifest.scalars.get("max_seq_len_q")
        counts = np.full(rows, stated if isinstance(stated, int) and 0 < stated < 2**31 else 1, np.int64)
    return np.minimum(np.maximum(counts, 1), key_counts)


def _row_count(rows: int) -> int:
    """Raises EnvironmentCannot."""
    if rows > MAX_ROWS:
        raise _too_large(f"{rows} rows", f"{MAX_ROWS}")
    return rows


def _contradiction(found: str) -> DumpUnreadable:
    """Lengths that nothing else in the dump bears out: whether damaged or dumped so, there is no such call."""
    return DumpUnreadable(f"the dump contradicts itself: {found}; gemma4-triage dumps verify says if it is damaged")


def _too_large(found: str, cap: str) -> EnvironmentCannot:
    return EnvironmentCannot(f"too large to replay: {found}; at most {cap}", HINT)
