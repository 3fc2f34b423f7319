"""What a finding about the null page in a live column says, and what its dump tells of the SWA page's free."""

from itertools import pairwise

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose.evidence import said, tensor_or_none
from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.diagnose.where_wrong import BELIEVED, FULL, ROWS, Wrong
from gemma4_triage.finding import Evidence

_UNKNOWN = (
    "A place that a request needs holds the null page; the dump does not say whether it was never filled, was cleared "
    "too early, or is of a length that reaches too far."
)
FREED = (
    "An SWA page was given back while its request still needs it: the map has had nothing there since. A window that "
    "is reckoned too short, or a count of evicted tokens that is too large, frees like that."
)
OF_ANOTHER = (
    "An SWA page was given back while its request still needs it, by the eviction of another request's window: that "
    "named a page that is not its own."
)
EVICTED = (
    "The prefix cache evicted an SWA page that a running request still needs: the request's lock was given back too "
    "early, or the eviction passed over it. The counts of the nodes' locks before it tell which."
)
TAKEN_LATER = (
    "The request took a page from the prefix cache whose SWA page had been given back before: the match went on into a "
    "part of the cache that has no SWA pages any more, as its window needs them."
)
ROW_OR_FREE = (
    "An SWA page was given back as another request's than the one that needs it now: that call named a page of this "
    "request, or the row of this one has a page of that. Which of them is not known."
)
_GIVEN = (
    "The sliding-window pool handed out its null page, and the map has what it gave: page 0 was on that pool's free "
    "list. Somebody freed a slot that has no SWA page, or the list was written; which of them is not known."
)
_TWICE = (
    "The request's row of req_to_token has one page at two places. What the window gave back of the first is missing "
    "at the second."
)
_CAUSES: dict[Structure | None, str] = {
    Structure.SWA_MAPPING: (
        "The full-to-SWA mapping has nothing for a page that a request still needs: it was evicted too early, or never "
        "mapped."
    ),
    Structure.SWA_TABLE: "The sliding layers' table has the null page where the mapping has a real one.",
    Structure.FULL_TABLE: "The full layers' table has the null page where the request's own row has a real one.",
    Structure.REQUEST_ROW: "The request's row of req_to_token has the null page at a place that the request needs.",
    Structure.WRITE_LOCATIONS: "A token's keys and values are to be written to the null page; its row has a real one.",
    Structure.KERNEL_LENGTHS: "The kernel is told of more keys than the request has: its row has no page for them.",
    Structure.ROW_INDICES: "The batch reads a row of req_to_token that is not the request's: it holds nothing.",
}

_LAST_COLUMNS = (
    "It is the last page of every request that has not filled it, and no other: its columns were counted by whole "
    "pages, or read at a page's last token, which those requests do not have yet."
)

_FEWER = (
    "The kernel is told of fewer keys than the request has: it looks for the window of the newest where older ones "
    "stand, whose pages were given back."
)


_ROW_OF_ANOTHER = (
    "The full layers' table has, at this request's place, the pages of another request of the batch, and none where "
    "that one ends: its rows were filled in another order than that of the requests, or one of them twice."
)


_EMPTY_MAP = (
    "The full-to-SWA mapping by which the tables are made has nothing for any page of this batch, its newest included, "
    "and the SWA page of this place was handed out and not given back: the pool has another map than the one that the "
    "allocator writes, such as a copy (register_mapping), or it was not written, or emptied as a whole."
)


def kept(dump: Dump) -> tuple[Evidence, ...]:
    """Return what says that the place has its SWA page still; nothing where that is not known."""
    if not _is_kept(dump):
        return ()
    return (
        said(dump, "scalars.peer", "the SWA page that the place had, by the ledger"),
        said(dump, "scalars.peer_given_back", "whether anybody gave that page back"),
    )


def _is_kept(dump: Dump) -> bool:
    """Return whether the SWA page that the place had is known, and nobody gave it back."""
    scalars = dump.manifest.scalars
    peer = scalars.get("peer")
    return isinstance(peer, int) and peer is not True and peer > 0 and scalars.get("peer_given_back") is False


def _is_empty(dump: Dump) -> bool:
    """Return whether the map has nothing for any page of several, nor for what is written, and one has its SWA page."""
    if not _is_kept(dump):
        return False
    tables = [tensor_or_none(dump, name) for name in ("page_table", "swa_page_table", "swa_out_cache_loc")]
    if any(one is None or not one.size for one in tables):
        return False
    full, swa, writes = tables
    return bool((full > 0).sum() > 1 and not (swa > 0).any() and not (writes > 0).any())


_ERASED = (
    "The full-to-SWA mapping has nothing for a page that a request still needs, and the SWA page of this place was "
    "handed out and never given back: what was written of it is gone from the map, or was never written."
)
_NOTHING_OF_ROWS = "The full layers' table has no page at any place at which the requests' own rows have one:"
_COPIED = (
    "the backend reads a copy of req_to_token (its own attribute is not the pool's), which nobody keeps up to date."
)
_ELSEWHERE = "it was read from the pool's rows at other places than theirs, as with a wrong stride or base."
_EITHER = "it was read from a copy of req_to_token, or at other places, as with a wrong stride."
_ROUNDED_UP = (
    "In each such request it is the page in which the window begins, and no other: what has left it is rounded up to "
    "whole pages, reaches a token too far, or is counted from what is allocated ahead; down, and from the length, is "
    "right (_evict_swa)."
)


_TOO_LONG = (
    "A length is wrong: the kernel is told of {told} keys of a request, and the table has columns for {most}. It is "
    "the batch's own (seq_lens), or the kernel's copy of it (cache_seqlens)."
)
_TOO_SHORT = (
    "A length is wrong: the kernel is told of {told} keys of a request of which this forward alone computes {most}. It "
    "is the batch's own (seq_lens), or the kernel's copy of it (cache_seqlens)."
)


_TO_WRITE = (
    "A token's keys and values are to be written to the null page: the hand-out of its slot was wrong, or the list "
    "(out_cache_loc). Nobody looked at that hand-out."
)


def impossible_length(dump: Dump) -> tuple[int, str] | None:
    """Return the row of a length that no request of this forward can have, and what is said of it; None if none is.

    It reaches past the full layers' table, or is less than what the forward itself writes of that request.
    """
    told, columns = tensor_or_none(dump, "cache_seqlens"), dump.manifest.extents.get("table_columns")
    if told is None or told.ndim != 1 or tensor_or_none(dump, BELIEVED) is not None:
        return None
    bounds = tensor_or_none(dump, "out_cache_loc_indptr")
    parts = [0] * len(told)
    if bounds is not None and bounds.ndim == 1 and len(bounds) == len(told) + 1 and dump.manifest.role == "target":
        parts = [int(end) - int(begin) for begin, end in pairwise(bounds)]
    # A dump may hold fewer columns of a table than it has.
    most = None if columns is None else columns * (dump.manifest.page_size or 1)
    for row, keys in enumerate(told.tolist()):
        if keys < parts[row]:
            return row, _TOO_SHORT.format(told=keys, most=parts[row])
        if most is not None and keys > most:
            return row, _TOO_LONG.format(told=keys, most=most)
    return None


def cause_of(dump: Dump, wrong: Wrong, freed: bool, given: bool) -> str:
    """Return the sentence of a null page whose free, if there was one, nothing more is known of."""
    if wrong.structure is None and (length := impossible_length(dump)) is not None:
        return length[1]
    if wrong.handed_out and dump.manifest.offences[0].table == "out_cache_loc":
        return _TO_WRITE
    if wrong.structure is Structure.SWA_MAPPING and not (freed or given) and _is_empty(dump):
        return _EMPTY_MAP
    if wrong.structure is Structure.SWA_MAPPING and not (freed or given) and _is_kept(dump):
        return _ERASED
    if wrong.structure is Structure.KERNEL_LENGTHS and _told_of_fewer(dump):
        return _FEWER
    if (wrong.structure, wrong.defect) == (Structure.REQUEST_ROW, Defect.DUPLICATE):
        return _TWICE
    if wrong.structure is Structure.FULL_TABLE and wrong.defect in (Defect.SWAPPED, Defect.FOREIGN):
        return _ROW_OF_ANOTHER
    if wrong.structure is Structure.FULL_TABLE and _has_nothing_of_rows(dump):
        copied = dump.manifest.scalars.get("rows_are_copied")
        return f"{_NOTHING_OF_ROWS} {_COPIED if copied else _ELSEWHERE if copied is False else _EITHER}"
    if freed and begins_its_window(dump):
        return f"{FREED} {_ROUNDED_UP}"
    said = FREED if freed else _GIVEN if given else _CAUSES.get(wrong.structure, _UNKNOWN)
    return f"{said} {_LAST_COLUMNS}" if wrong.structure is Structure.FULL_TABLE and _last_columns(dump) else said


def _last_columns(dump: Dump) -> bool:
    """Return whether it is the last page of each request that has not filled it, of several, and nothing else."""
    manifest, lengths = dump.manifest, tensor_or_none(dump, BELIEVED)
    if lengths is None or not manifest.page_size or manifest.offence_count != len(manifest.offences):
        return False
    open_rows = [(row, int(length) // manifest.page_size) for row, length in enumerate(lengths)]
    open_rows = [place for place, length in zip(open_rows, lengths, strict=True) if int(length) % manifest.page_size]
    return len(open_rows) > 1 and [(one.row, one.column) for one in manifest.offences] == open_rows


def _told_of_fewer(dump: Dump) -> bool:
    told, believed = tensor_or_none(dump, "cache_seqlens"), tensor_or_none(dump, BELIEVED)
    row = dump.manifest.offences[0].row
    if told is None or believed is None or not 0 <= row < min(len(told), len(believed)):
        return False
    return int(told[row]) < int(believed[row])


def freed_by(dump: Dump) -> Structure:
    """Return what gave the page back: the eviction of a window gives back nothing of the full pool."""
    site = dump.manifest.scalars.get("peer_free_site")
    # An insert gives back what the request counts as gone from its window.
    evicted = site == "evict_swa" or (site == "cache_unfinished_req" and begins_its_window(dump))
    return Structure.WINDOW_EVICTION if evicted else Structure.FREE_CALL


def _has_nothing_of_rows(dump: Dump) -> bool:
    """Return whether no live entry of the table is a page, and each row has one there."""
    table, rows = tensor_or_none(dump, FULL), tensor_or_none(dump, ROWS)
    lengths, page = tensor_or_none(dump, "cache_seqlens"), dump.manifest.page_size or 1
    if table is None or rows is None or lengths is None or table.shape != rows.shape or table.ndim != 2:
        return False
    spans = [slice(0, min(-(-int(length) // page), table.shape[1])) for length in lengths]
    live = [(table[row, span], rows[row, span]) for row, span in enumerate(spans[: len(table)])]
    # One place alone may have been emptied.
    return sum(made.size for made, _ in live) > 1 and not any(made.any() or not own.all() for made, own in live)


def begins_its_window(dump: Dump) -> bool:
    """Return whether each listed place is the one in which a decode's window begins."""
    manifest, lengths = dump.manifest, tensor_or_none(dump, "cache_seqlens")
    window, page = manifest.scalars.get("window_left"), manifest.page_size
    if lengths is None or not isinstance(window, int) or not page or manifest.scalars.get("max_seq_len_q") != 1:
        return False
    places = [(int(lengths[bad.row]) - window) // page for bad in manifest.offences if bad.row < len(lengths)]
    return [bad.column for bad in manifest.offences] == places and min(places, default=0) > 0


def is_anothers(dump: Dump) -> bool:
    """Return whether the eviction of another request's window gave the page back."""
    by, of = dump.manifest.scalars.get("peer_freed_by"), dump.manifest.offences[0].request_slot
    evicted = dump.manifest.scalars.get("peer_free_site") == "evict_swa"
    return evicted and None not in (by, of) and by != of


def may_be_the_row(dump: Dump) -> bool:
    """Return whether another request gave it back, and no probe looked at rows."""
    by, of = dump.manifest.scalars.get("peer_freed_by"), dump.manifest.offences[0].request_slot
    guards = Guards(dump.manifest.dump_id, "guards.", dump.manifest.guards)
    return None not in (by, of) and by != of and guards.attached("request-rows") is None


def was_taken_later(dump: Dump) -> bool:
    """Return whether the request took the full page from the prefix cache after its SWA page was given back."""
    taken, freed = (dump.manifest.scalars.get(name) for name in ("page_taken_step", "peer_free_step"))
    return isinstance(taken, int) and isinstance(freed, int) and freed < taken


def given_back(dump: Dump) -> tuple[Evidence, ...]:
    """Return what a dump of a page table says of the free of the SWA page that a place had."""
    by = dump.manifest.scalars.get("peer_freed_by")
    return (
        *(() if by is None else (said(dump, "scalars.peer_freed_by", "whose pages that was to give back"),)),
        said(dump, "scalars.peer", "the SWA page that the place had, by the ledger"),
        said(dump, "scalars.peer_free_site", "who gave that page back"),
        said(dump, "scalars.peer_free_step", "when"),
        *((said(dump, "scalars.page_taken_step", "when the request took it from the cache"),) * was_taken_later(dump)),
    )
