"""How wrong numbers may have come from the right ones: by arithmetic that fits every entry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gemma4_dumps.reader import Dump
from gemma4_dumps.wording import number_of
from gemma4_triage.diagnose.evidence import tensor_or_none

_BITS = (8, 16, 32)
_FEWEST = 3
"""Of entries that are wrong by the same amount, before that is said."""
_LARGEST = 1 << 60

_UNWRITTEN = (
    "its row was not written with the cached prefix, and has there what an earlier request left, or was written with "
    "other slots"
)


def relation_of(dump: Dump) -> str | None:
    """Return as a clause what all listed entries have in common with what should stand there; None if nothing.

    Args:
        dump: One of `request-rows`, whose offences have both.
    """
    pairs = [
        (offence.value, offence.lower)
        for offence in dump.manifest.offences
        if offence.upper == offence.lower + 1 and abs(offence.value) < _LARGEST
    ]
    scalars = dump.manifest.scalars
    numbers = {name: given for name in ("prefix", "drafts") if isinstance(given := scalars.get(name), int)}
    if (lacking := _of_one_source(dump)) is not None:
        return lacking
    if (places := places_early(dump)) is not None:
        return _of_places(dump, places)
    if not pairs or any(value == expected for value, expected in pairs):
        return None
    found = next(_relations(pairs, dump.manifest.page_size or 1, **numbers), None)
    return (
        _UNWRITTEN if found is None and (scalars.get("why"), scalars.get("first_look")) == ("prefix", True) else found
    )


def _of_one_source(dump: Dump) -> str | None:
    """Return as a clause what may be wrong in the place of a batch's length that is too high; None if nothing else."""
    scalars = dump.manifest.scalars
    value, expected = scalars.get("value"), scalars.get("expected")
    shared = scalars.get("account") == "batch" and scalars.get("agreed_before") is False
    if not shared or not isinstance(value, int) or not isinstance(expected, int) or value <= expected:
        return None
    return (
        "or the request lacks what was accepted: its tokens and its count are made of one list of how many that were "
        "(accept_lens, process_batch_result_decode)"
    )


def places_early(dump: Dump) -> int | None:
    """Return by how many places a row was written too early, negative if too late; None where that is not told.

    The place of a slot within its page is that of its token: of entries that are out of it by as much one write is the
    cause. One that is wrong by whole pages stands in its place.
    """
    page, listed = dump.manifest.page_size or 1, dump.manifest.offences
    if dump.manifest.verdict != "row_entry" or page < 3 or len(listed) < 2 or any(bad.value < page for bad in listed):
        return None
    off = {(bad.value - bad.column) % page for bad in listed}
    places = off.pop() if len(off) == 1 else 0
    return (places if 2 * places < page else places - page) or None


def _of_places(dump: Dump, places: int) -> str:
    rows, way = tensor_or_none(dump, "rows"), "early" if places > 0 else "late"
    many = abs(places) > 1
    by = f"{number_of(abs(places), 'place')} too {way}"
    listed = dump.manifest.offences
    moved = f"{abs(places)} too {'high' if places > 0 else 'low'}"
    adds = f"{'added' if places > 0 else 'took off'} {abs(places)}"
    # Slots that stand at other places differ by as much only as far as their pages follow each other in the pool.
    alike = all(bad.upper == bad.lower + 1 and bad.value == bad.lower + places for bad in listed)
    if alike and _leaves_the_row(dump, places):
        return (
            f"each entry is {moved}, within the page that belongs there, and beyond its end in the next one of the "
            f"pool, which is not what the row has next: what wrote these {adds}, or counts the page's slots from "
            "another begin"
        )
    which = f"{abs(places)} tokens " * many + ("behind" if places > 0 else "before") + (" its own" if many else " it")
    ends = [] if rows is None or rows.ndim != 2 else (rows >= 0).sum(1).tolist()
    last = [bad.row < len(ends) and bad.column == ends[bad.row] - 1 for bad in listed]
    if places == 1 and all(last):
        return f"each row has the slot of the token {which}: what is written ahead began {by}, at the last token"
    either = f", or {adds}" if alike else ""
    return f"each entry is the slot of the token {which}: what wrote these began {by}{either}"


def is_within_its_page(dump: Dump) -> bool:
    """Return whether some entry of a row names another slot of the very page that belongs there: no other page came."""
    page = (dump.manifest.page_size or 1) if dump.manifest.verdict == "row_entry" else 1
    known = [bad for bad in dump.manifest.offences if bad.upper == bad.lower + 1]
    return page > 1 and any(bad.value != bad.lower and bad.value // page == bad.lower // page for bad in known)


def is_off_by_a_slot(dump: Dump) -> bool:
    """Return whether each listed entry is one slot before or behind its own, and some within their own pages."""
    listed = dump.manifest.offences
    near = all(bad.upper == bad.lower + 1 and abs(bad.value - bad.lower) == 1 for bad in listed)
    return near and is_within_its_page(dump)


def _leaves_the_row(dump: Dump, places: int) -> bool:
    """Return whether a wrong entry is not the slot of the row's token so many places on, where that is known."""
    rows, listed = tensor_or_none(dump, "rows"), dump.manifest.offences
    should = {(bad.row, bad.column): bad.lower for bad in listed}
    if rows is None or rows.ndim != 2 or len(listed) < dump.manifest.offence_count:
        return False
    for bad in listed:
        row, column = bad.row, bad.column + places
        if not (0 <= row < rows.shape[0] and 0 <= column < rows.shape[1]):
            continue
        right = should.get((row, column), int(rows[row, column]))
        if right >= 0 and right != bad.value:
            return True
    return False


def _relations(pairs: Sequence[tuple[int, int]], page: int, prefix: int = 0, drafts: int = 0) -> Iterator[str]:
    apart = {value - expected for value, expected in pairs}
    values, alike = [value for value, _ in pairs], len(apart) == 1
    for bits in _BITS:
        for signed in (True, False):
            # A zero is more often nothing than the rest of a division.
            if any(values) and all(value == _cut(expected, bits, signed) for value, expected in pairs):
                yield f"as a number is that was cut to {bits} bits"
    if prefix > 1 and apart == {-prefix}:
        yield f"too low by {prefix}, the tokens of the request's prefix: that is left out"
    if drafts > 1 and apart == {-drafts}:
        yield f"too low by {drafts}, the tokens of a verification: these are left out"
    if drafts > 1 and apart == {drafts}:
        yield f"too high by {drafts}, the tokens of a verification: these are counted once more"
    if page > 1:
        if all(value > 1 and value in (expected // page, -(-expected // page)) for value, expected in pairs):
            yield f"as many pages as there should be tokens: divided by the page size, {page}"
        if all(value == expected * page and expected for value, expected in pairs):
            yield f"multiplied by the page size, {page}"
        if len(pairs) > 1 and all(value == expected // page * page for value, expected in pairs):
            yield f"rounded down to whole pages of {page}"
        if len(pairs) > 1 and all(value == -(-expected // page) * page for value, expected in pairs):
            yield f"rounded up to whole pages of {page}"
    if len(pairs) > 1 and all(value == 2 * expected for value, expected in pairs):
        yield "twice what it should be"
    if alike and len(pairs) >= _FEWEST:
        by = apart.pop()
        yield f"each of {len(pairs)} entries too {'high' if by > 0 else 'low'} by {abs(by)}"


def _cut(number: int, bits: int, signed: bool) -> int:
    """Return what is left of a number in so many bits."""
    half = 1 << (bits - 1) if signed else 0
    return (number + half) % (1 << bits) - half
