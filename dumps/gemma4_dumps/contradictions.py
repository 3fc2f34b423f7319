"""What a manifest says in two places, and otherwise in each: sizes of pages, and in which way an entry is wrong.

A manifest vouches for itself alone, so whoever changes one of its words has to change the other as well.
"""

import math
from collections.abc import Mapping

import numpy as np

from .errors import DumpError
from .schema import Manifest
from .structures import Defect, Structure
from .tensor_file import TensorIndex

REQUEST_ROWS = "request-rows"
_S, _D = Structure, Defect
_OF_VERDICT: Mapping[str, tuple[str, ...]] = {
    "row_entry": (_S.REQUEST_ROW, _S.TREE_NODE),
    "row_index": (_S.ROW_INDICES,),
    "length_differs": (_S.BATCH_LENGTHS, _S.KERNEL_LENGTHS, _S.REQUEST_COUNTERS),
    "write_misplaced": (_S.WRITE_LOCATIONS, _S.SWA_MAPPING),
    "table_entry": (_S.FULL_TABLE, _S.SWA_TABLE),
    "counter_wrong": (_S.REQUEST_COUNTERS,),
    "window_kept": (_S.WINDOW_EVICTION,),
    "position_wrong": (_S.POSITIONS,),
    "insert_wrong": (_S.FREE_CALL, _S.TREE_NODE, _S.REQUEST_ROW),
    "text_differs": (_S.TREE_NODE,),
    # No structure of KV memory.
    "token_differs": ("input tokens", "accepted drafts", "answer's tokens"),
    "not_finite": ("logits", "hidden states"),
    "not_stored": ("keys and values",),
    "keys_changed": ("keys and values",),
    "request_misplaced": ("waiting queue",),
    "mode_left": ("forward mode",),
    "stop_missed": ("finish state",),
    "sampling_differs": ("sampling parameters",),
}
"""What `request-rows` says is wrong where it comes to one of these."""
_OF_PLACES = ("row_entry", "write_misplaced", "table_entry")
_ONLY_IF: Mapping[Defect, tuple[str, ...]] = {_D.LOST: ("reserved", "kept"), _D.EARLY: ("given back", "free")}
"""Why an entry is, where it is wrong in these ways; of locks, which have none of these verdicts, for any reason."""
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_ENOUGH = 4
"""Of how many slots it is told how long pages are."""


def other_structure(manifest: Manifest) -> str | None:
    """Say how the structure that `request-rows` names is another than its verdict or its provenance has."""
    if manifest.rule != REQUEST_ROWS:
        return None
    named, known = manifest.scalars.get("structure"), _OF_VERDICT.get(manifest.verdict)
    if known is not None and named not in known:
        return f"the structure is {named} by the scalars, and {manifest.verdict} is of the {known[0]}"
    origin = manifest.provenance.table_origin
    return f"the structure is {named} by the scalars, and {origin} by the provenance" if named != origin else None


def other_defect(manifest: Manifest) -> str | None:
    """Say how the way in which an entry is wrong, by `request-rows`, is none in which its value can be."""
    scalars, word = manifest.scalars, manifest.scalars.get("defect")
    value, expected = scalars.get("value"), scalars.get("expected")
    defect = next((one for one in Defect if one == word), None)
    if manifest.rule != REQUEST_ROWS or defect is None or not isinstance(value, int):
        return None
    why = scalars.get("why")
    of_places = defect is not Defect.OTHER_SPACE or manifest.verdict in _OF_PLACES or why == "window"
    of_places &= why != "kept" or defect is Defect.LOST
    if manifest.verdict in _OF_VERDICT and not (of_places and why in _ONLY_IF.get(defect, (why,))):
        return f"the value is {defect.value} by the scalars, which {manifest.verdict} never is"
    # An entry of a row is wrong by pages. Of a row and its node either may be the one that is as it was.
    of_row = manifest.verdict == "row_entry"
    unit = (manifest.page_size or 1) if of_row else 1
    pairs = [(value, expected if isinstance(expected, int) else None)]
    pairs += [(expected, value)] if of_row and isinstance(expected, int) else []
    if any(
        _fits(defect, -1 if one < 0 else one // unit, None if other is None else other // unit) for one, other in pairs
    ):
        return None if defect is not Defect.SWAPPED or manifest.offence_count > 1 else "one entry alone is swapped"
    should = "" if expected is None else f" where {expected} belongs"
    return f"the value is {defect.value} by the scalars, and it is {value}{should}"


def _fits(defect: Defect, value: int, expected: int | None) -> bool:
    match defect:
        case Defect.ZERO:
            return value == 0
        case Defect.NEGATIVE:
            return value < 0
        case Defect.OFF_BY_ONE:
            return expected is None or abs(value - expected) == 1
        case Defect.PAST_END:
            return value > 0 and (expected is None or value > expected)
        case Defect.FOREIGN | Defect.OTHER_SPACE:
            return value > 0
        case _:
            return True


_COUNTED: Mapping[str, int] = {
    **dict.fromkeys(("rows_wrong", "tokens_wrong", "parts_wrong", "pages_free", "overflowing"), 1),
    **dict.fromkeys(("left_before", "path_slots", "path_tokens", "made_in_step", "read", "finished", "again"), 0),
}
"""Numbers of a manifest that count something, and the least that they can be."""
_NO_MORE_THAN = (
    ("rows_wrong", "requests"),
    ("finished", "requests"),
    ("overflowing", "requests"),
    ("tokens_wrong", "tokens_new"),
    ("parts_wrong", "parts_known"),
    ("full_protected", "full_total"),
    ("swa_protected", "swa_total"),
)
"""Counts of a manifest of which the first is a part of the second."""


def impossible_count(manifest: Manifest) -> str | None:
    """Say which number of a manifest counts what cannot be so many."""
    scalars = manifest.scalars
    for name, least in _COUNTED.items():
        value = scalars.get(name)
        if isinstance(value, int) and value < least:
            return f"{name} is {value} by the scalars, where {least} is the least that there can be"
    for part, whole in _NO_MORE_THAN:
        some, all_of_it = scalars.get(part), scalars.get(whole)
        if isinstance(some, int) and isinstance(all_of_it, int) and some > all_of_it:
            return f"{part} is {some} by the scalars, of {all_of_it} {whole}"
    made, step = scalars.get("made_in_step"), manifest.step
    if isinstance(made, int) and isinstance(step, int) and made > step:
        return f"made_in_step is {made} by the scalars, and the step {step} by the manifest"
    return None


def other_page_size(manifest: Manifest) -> str | None:
    """Say how a page has another size than a pool's pages and tokens give it."""
    size = manifest.page_size
    if size is None:
        return None
    for pool in ("full", "swa"):
        pages = manifest.extents.get(f"pages_{pool}_pool")
        tokens = manifest.extents.get(f"slots_{pool}_pool")
        total = manifest.scalars.get(f"{pool}_total") if manifest.rule == "leak-audit" else tokens
        # A pool may have grown by some pages since, which is a fault of its own.
        if pages and isinstance(total, int) and (2 * total + pages) // (2 * pages) != size:
            return f"a page has {size} slots by the manifest, and the {pool} pool {total} in {pages} pages"
    asked = [one.partition("=")[2] for one in manifest.launch_args if one.startswith("--page-size=")]
    asked += [
        after
        for one, after in zip(manifest.launch_args, manifest.launch_args[1:], strict=False)
        if one == "--page-size"
    ]
    if asked and asked[-1].isdecimal() and int(asked[-1][:9]) != size:
        return f"a page has {size} slots by the manifest, and {asked[-1][:9]} by the server's arguments"
    return None


def other_page_size_of_writes(index: TensorIndex, manifest: Manifest) -> str | None:
    """Say how no slot that a forward writes is of its row's page with the manifest's page size, and all with another.

    Raises DumpError if a tensor cannot be read.
    """
    size = manifest.page_size
    found = [_integers(index, name) for name in ("out_cache_loc", "cache_seqlens", "request_rows")]
    if manifest.rule != "page-table-bounds" or size is None or size < 1 or any(one is None for one in found):
        return None
    writes, lengths, rows = (one for one in found if one is not None)
    if writes.ndim != 2 or lengths.ndim != 1 or rows.ndim != 2 or not len(writes) == len(lengths) == len(rows):
        return None
    places = lengths[:, None] - writes.shape[1] + np.arange(writes.shape[1])
    agree = {one: _agree(writes, places, rows, one) for one in (size, *_SIZES)}
    told = {one: counts for one, counts in agree.items() if counts[1] >= _ENOUGH}
    right = [one for one, (good, seen) in told.items() if one != size and good == seen]
    if size in told and told[size][0] == 0 and right:
        return f"a page has {size} slots by the manifest, and {right[-1]} by where each row's tokens are written"
    return None


def _agree(writes: np.ndarray, places: np.ndarray, rows: np.ndarray, size: int) -> tuple[int, int]:
    """Return how many slots are of the page that the row has for their token, at its place in it, and of how many."""
    columns = places // size
    inside = (places >= 0) & (columns < rows.shape[1]) & (writes > 0)
    held = np.take_along_axis(rows, np.where(inside, columns, 0), 1)
    known = inside & (held > 0)
    return int((known & (held * size + places % size == writes)).sum()), int(known.sum())


def _integers(index: TensorIndex, name: str) -> np.ndarray | None:
    record = index.records.get(name)
    if record is None or not record.dtype.startswith("int") or record.truncated_from_shape is not None:
        return None
    # A manifest may name any number: Python's own do not overflow.
    count = math.prod(record.shape) if record.shape else 0
    if not 0 < count <= 1 << 20:
        return None
    try:
        return index.read(name, 0, count).reshape(record.shape).astype(np.int64)
    except (ValueError, OverflowError) as error:
        raise DumpError(f"{name} cannot be {list(record.shape)}: {error}") from error
