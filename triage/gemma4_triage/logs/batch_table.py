"""Reads the batch lines of a whole block at once, into columns of numbers.

A server writes few orders of fields, and nearly all of a log in them. What is left of a line without its digits, its
skeleton, says which order it is; a line is read here only if its digits stand where they stood in a line of the same
skeleton that `batch_line.find_batch` has read. All other lines are left to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import repeat
from typing import NamedTuple

import numpy as np

from gemma4_triage.logs.batch_line import FIELD, LINE, MARK, BatchLine, device_of, find_batch
from gemma4_triage.logs.facts import Device
from gemma4_triage.logs.lines import DIGITS, Block

VALUES = (
    *("running", "queued", "full_usage", "swa_usage", "new_requests", "new_tokens", "cached_tokens"),
    *("accept_length", "generated_per_s", "in_graph", "transferring"),
)
"""The columns of `Rows.values`, which are fields of BatchLine."""

_FIELDS: dict[bytes, str] = {
    b"#running-req": "running",
    b"#queue-req": "queued",
    b"full token usage": "full_usage",
    b"token usage": "full_usage",
    b"swa token usage": "swa_usage",
    b"#new-seq": "new_requests",
    b"#new-token": "new_tokens",
    b"#cached-token": "cached_tokens",
    b"#inflight-req": "transferring",
    b"#transfer-req": "transferring",
    b"accept len": "accept_length",
    b"gen throughput (token/s)": "generated_per_s",
}
_PREFILL_ONLY = ("new_requests", "new_tokens", "cached_tokens")
_DECODE_ONLY = ("accept_length", "generated_per_s")
_COUNTS = ("running", *_PREFILL_ONLY)
_STAMP = re.compile(rb"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d((?: [A-Z_]+\d{1,4}){0,4})\] ")
_STAMP_LENGTHS = (4, 2, 2, 2, 2, 2)
_STAMP_NUMBERS = len(_STAMP_LENGTHS)
_RANK_DIGITS, _FRACTION_DIGITS = 4, 6
_STAMP_WEIGHTS = np.array([10**10, 10**8, 10**6, 10**4, 100, 1])
_VALUE = re.compile(rb"\d{1,8}(?:\.\d{1,6})?")
_FAR = 100  # where a batch begins at the latest, behind a stamp
_DIGITS = re.compile(rb"\d+")
_MOST_LAYOUTS, _MOST_TRIES = 64, 512
# Skeletons of lines without a batch, which are most of what is not read here: so many, of so many bytes each.
_MOST_WITHOUT, _LONGEST_WITHOUT = 4096, 1000
_UNSEEN, _WITHOUT = -2, -1
_TEN = 10.0 ** np.arange(9)
_WORD = 8  # bytes of a machine word, and digits of the longest number that is read here
_NO_DAY = 10**6


class Rows(NamedTuple):
    """Batch lines of one scheduler or of several, in the order of the log.

    Attributes:
        lines: int64 [n], the number of each line in the log.
        times: int64 [n], when it was written, see `time_text`.
        prefill: bool [n], whether it is of a prefill.
        values: float64 [n, len(VALUES)]; NaN where the line does not say.
    """

    lines: np.ndarray
    times: np.ndarray
    prefill: np.ndarray
    values: np.ndarray

    def part(self, which: slice | np.ndarray) -> Rows:
        """Return some of the rows."""
        return Rows(self.lines[which], self.times[which], self.prefill[which], self.values[which])


class Table(NamedTuple):
    """The batch lines of a block.

    Attributes:
        rows: the lines, as in the log.
        ranks: [n], which scheduler each is of, as an index into `names`.
        names: of schedulers, as stamps have them; "" of the only one.
        device: what the batches ran on; "" if no line says so.
    """

    rows: Rows
    ranks: np.ndarray
    names: list[str]
    device: Device


def time_code(text: str) -> int:
    """Return a stamp's text as a number: YYYYMMDDhhmmss, below 0 where it has no day, 0 for no text."""
    digits = "".join(filter(str.isdecimal, text))
    return int(digits) + (0 if len(digits) > 6 else -_NO_DAY) if digits else 0


def time_text(code: int) -> str:
    """Return the text of a number that `time_code` made."""
    if not code:
        return ""
    digits = f"{code:014d}" if code > 0 else f"{code + _NO_DAY:06d}"
    clock = f"{digits[-6:-4]}:{digits[-4:-2]}:{digits[-2:]}"
    return clock if code < 0 else f"{digits[:4]}-{digits[4:6]}-{digits[6:8]}T{clock}"


def single(batch: BatchLine, line: int, time: str) -> Rows:
    """Return one batch line as rows."""
    values = [[getattr(batch, name) for name in VALUES]]
    return Rows(
        np.array([line]), np.array([time_code(time)]), np.array([batch.prefill]), np.array(values, dtype=np.float64)
    )


def joined(tables: list[Table]) -> Table | None:
    """Return one table of several of the same block; None of none."""
    if len(tables) < 2:
        return tables[0] if tables else None
    names = list(dict.fromkeys(name for table in tables for name in table.names))
    where = {name: index for index, name in enumerate(names)}
    ranks = [np.array([where[name] for name in table.names])[table.ranks] for table in tables]
    rows = concatenated([table.rows for table in tables])
    order = np.argsort(rows.lines, kind="stable")
    device = _first_device(table.device for table in tables)
    return Table(rows.part(order), np.concatenate(ranks)[order], names, device)


def concatenated(parts: list[Rows]) -> Rows:
    """Return all rows of the parts, one behind another."""
    return parts[0] if len(parts) == 1 else Rows(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _first_device(devices: Iterable[Device]) -> Device:
    for device in devices:
        if device:
            return device
    return ""


class _Layout(NamedTuple):
    """Where the numbers of a skeleton stand, and what they are.

    Attributes:
        offsets: how many bytes of the skeleton stand before each number.
        needed: which numbers are read: those of the stamp, of the rank, of the fields.
        shortest: how many digits each of those has at least.
        longest: how many digits each of those has at most.
        fields: (column of VALUES, which of those, whether the number behind it is its fraction).
        prefill: whether the line is of a prefill.
        rank: the words before the numbers of the rank, "DP", "TP".
        blank: values of the fields that the line does not have.
        device: what the batch ran on; "" if the line does not say so.
    """

    offsets: np.ndarray
    needed: np.ndarray
    shortest: np.ndarray
    longest: np.ndarray
    fields: tuple[tuple[int, int, bool], ...]
    prefill: bool
    rank: tuple[str, ...]
    blank: np.ndarray
    device: Device


class TableReader:
    """Feed it blocks in order; what it has learnt of one holds for those that follow."""

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        self._layouts: list[_Layout] = []
        self._tries = 0

    def split(self, block: Block) -> tuple[Table | None, Block | None]:
        """Return the batch lines that could be read, and a block of all other lines; None where there are none."""
        if not block.whole or MARK not in block.text:
            return None, block
        skeletons = block.text.translate(None, DIGITS).split(b"\n")
        layout = np.fromiter(map(self._known.get, skeletons, repeat(_UNSEEN)), dtype=np.intp, count=len(skeletons))
        if self._learn(block, skeletons, np.flatnonzero(layout == _UNSEEN)):
            layout = np.fromiter(map(self._known.get, skeletons, repeat(_UNSEEN)), dtype=np.intp, count=len(skeletons))
        if layout.max() < 0:
            return None, block
        table = self._read(block, skeletons, layout)
        left = np.flatnonzero(layout < 0).tolist()
        if not left:
            return table, None
        lines, numbers = ([of[at] for at in left] for of in (block.lines, block.numbers))
        return table, block.with_lines(lines, numbers, block.streams and [block.streams[at] for at in left])

    def _read(self, block: Block, skeletons: list[bytes], layout: np.ndarray) -> Table | None:
        """Return the rows of the lines that have a layout; where a line does not keep to it, `layout` becomes -1."""
        numbers = _Numbers(block.text, skeletons)
        if not len(numbers.lengths):
            layout[:] = -1
            return None
        of = block.numbers
        all_lines = np.arange(of.start, of.stop) if isinstance(of, range) else np.array(of, dtype=np.int64)
        parts, names, ranks = [], [], []
        for index in np.flatnonzero(np.bincount(layout[layout >= 0], minlength=len(self._layouts))):
            form = self._layouts[index]
            at = np.flatnonzero(layout == index)
            found, lengths, kept = numbers.of(at, form)
            layout[at[~kept]] = -1
            at = at[kept]
            if not len(at):
                continue
            values = np.repeat(form.blank, len(at), axis=0)
            for column, number, fraction in form.fields:
                value = found[number].astype(np.float64)
                if fraction:
                    # Both are whole and below 2**53, so the quotient is the nearest number, as float() has it.
                    scale = _TEN.take(lengths[number + 1])
                    value = (value * scale + found[number + 1]) / scale
                values[:, column] = value
            lines = all_lines[at]
            times = _STAMP_WEIGHTS @ found[:_STAMP_NUMBERS].astype(np.int64)
            parts.append(Rows(lines, times, np.full(len(at), form.prefill), values))
            ranks.append(
                _ranks(form.rank, found[_STAMP_NUMBERS : _STAMP_NUMBERS + len(form.rank)].astype(np.int64).T, names)
            )
        if not parts:
            return None
        rows, rank = concatenated(parts), np.concatenate(ranks)
        if len(parts) > 1:
            order = np.argsort(rows.lines, kind="stable")
            rows, rank = rows.part(order), rank[order]
        device = _first_device(self._layouts[index].device for index in layout[layout >= 0])
        return Table(rows, rank, names, device)

    def _learn(self, block: Block, skeletons: list[bytes], at: np.ndarray) -> bool:
        """Say whether there were lines of a new layout."""
        learnt = False
        for index in at.tolist():
            line = block.lines[index]
            if MARK not in line:
                if len(self._known) < _MOST_WITHOUT and len(skeletons[index]) <= _LONGEST_WITHOUT:
                    self._known[skeletons[index]] = _WITHOUT
                continue
            if line[:2] != b"[2" or line.find(MARK, 0, _FAR) < 0 or skeletons[index] in self._known:
                continue
            if len(self._layouts) >= _MOST_LAYOUTS or self._tries >= _MOST_TRIES:
                break
            self._tries += 1
            form = _layout_of(line)
            if form is not None:
                self._known[skeletons[index]] = len(self._layouts)
                self._layouts.append(form)
                learnt = True
        return learnt


class _Numbers:
    """All runs of digits in a text.

    Attributes:
        lengths: how many digits each has.
    """

    def __init__(self, text: bytes, skeletons: list[bytes]) -> None:
        self._padded = b"\n" * _WORD + text + b"\n"
        characters = np.frombuffer(self._padded, dtype=np.uint8)
        digit = (characters - ord("0")) < 10
        edges = np.flatnonzero(digit[1:] != digit[:-1]) + 1
        self._characters, self._starts, self._ends = characters, edges[::2], edges[1::2]
        self.lengths = self._ends - self._starts
        # How many bytes that are no digits stand before each number, and before each line.
        self._before = self._ends - np.cumsum(self.lengths)
        of_lines = np.fromiter(map(len, skeletons), dtype=np.intp, count=len(skeletons)) + 1
        self._line = np.concatenate(([_WORD], _WORD + np.cumsum(of_lines)))
        self._first = np.searchsorted(self._before, self._line)

    def of(self, lines: np.ndarray, form: _Layout) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return what is needed of those of the lines that keep to a layout, and which do.

        Args:
            lines: indices.
            form: how many numbers a line has, and where.

        Returns:
            what the numbers are, uint64 [needed numbers, kept lines]; how many digits each has, in the same order;
            which lines are kept, bool [lines].
        """
        first, many = self._first[lines], len(form.offsets)
        # A row for each number, so that all that is done to one number of all lines runs through memory in order.
        which = np.arange(many)[:, None] + first
        right = self._first[lines + 1] - first == many
        if not right.all():
            which = np.where(right, which, 0)
        # `take` is much faster than an index.
        before = self._before.take(which)
        before -= self._line[lines]
        kept = right & (before == form.offsets[:, None]).all(axis=0)
        which = which.take(form.needed, axis=0)
        lengths = self.lengths.take(which)
        kept &= ((lengths >= form.shortest[:, None]) & (lengths <= form.longest[:, None])).all(axis=0)
        for number in range(_STAMP_NUMBERS, _STAMP_NUMBERS + len(form.rank)):
            # A leading zero belongs to the rank's name, and a number does not show it.
            leading = self._characters.take(self._starts.take(which[number]))
            kept &= (lengths[number] == 1) | (leading != ord("0"))
        if not kept.all():
            which, lengths = which[:, kept], lengths[:, kept]
        return _parsed(self._padded, self._ends.take(which), lengths), lengths, kept


_HALVES = tuple(
    (np.uint64(mask), np.uint64(factor), np.uint64(half))
    for mask, factor, half in (
        (0x0F0F0F0F0F0F0F0F, 2561, 8),
        (0x00FF00FF00FF00FF, 6553601, 16),
        (0x0000FFFF0000FFFF, 42949672960001, 32),
    )
)
"""For each step of `_parsed`: which bits are digits or sums, what adds neighbours up, and where their sum then is."""


def _parsed(padded: bytes, ends: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the numbers of up to 8 digits that end before `ends`, uint64.

    The eight bytes before the end are one word, of which those before the number are cleared; then neighbours are added
    up: digits to pairs, pairs to fours, fours to eight (D. Lemire, "Quickly parsing eight digits", 2022).
    """
    words = np.ndarray((len(padded) - _WORD + 1,), dtype="<u8", buffer=padded, strides=(1,))
    word = words[ends - _WORD]
    clear = (8 * np.maximum(_WORD - lengths, 0)).astype(np.uint64)
    # In place: fresh arrays for each step take as long as the step.
    word >>= clear
    word <<= clear
    for mask, factor, half in _HALVES:
        word &= mask
        word *= factor
        word >>= half
    return word


def _ranks(words: tuple[str, ...], numbers: np.ndarray, names: list[str]) -> np.ndarray:
    """Return the index in `names` of each row's rank, to which new names are added."""
    code = numbers @ (10_000 ** np.arange(len(words))) if words else np.zeros(len(numbers), dtype=np.int64)
    if (code == code[0]).all():
        firsts, inverse = np.zeros(1, dtype=np.intp), np.zeros(len(code), dtype=np.intp)
    else:
        _, firsts, inverse = np.unique(code, return_index=True, return_inverse=True)
    where = {name: index for index, name in enumerate(names)}
    found = []
    for first in firsts.tolist():
        name = " ".join(f"{word}{number}" for word, number in zip(words, numbers[first].tolist(), strict=True))
        if name not in where:
            where[name] = len(names)
            names.append(name)
        found.append(where[name])
    return np.array(found)[inverse.ravel()]


def _layout_of(line: bytes) -> _Layout | None:
    """Return the layout of a line with nothing but a stamp before its batch; None where it has to be read slowly."""
    stamp = _STAMP.match(line)
    head = None if stamp is None else LINE.match(line, stamp.end())
    found = None if head is None else find_batch(line)
    if stamp is None or head is None or found is None or found[0] != stamp.end():
        return None
    words = tuple(re.findall(r" ([A-Z_]+)", stamp[1].decode()))
    fields = [(match[1], match.start(2), match.end(2)) for match in FIELD.finditer(line, head.end())]
    names = [name for name, _, _ in fields]
    if len({*names}) < len(names) or _DIGITS.search(b" ".join(names)):
        return None
    runs = {match.start(): number for number, match in enumerate(_DIGITS.finditer(line))}
    batch = found[1]
    known: dict[str, tuple[int, bool]] = {}
    for name, start, end in fields:
        column = _FIELDS.get(name)
        if column is None or column in (_DECODE_ONLY if batch.prefill else _PREFILL_ONLY):
            continue
        value = line[start:end]
        if _VALUE.fullmatch(value) is None or (name.startswith(b"#") and b"." in value):
            return None
        if name != b"token usage" or b"full token usage" not in names:
            known[column] = (runs[start], b"." in value)
    before, offsets = 0, []
    for match in _DIGITS.finditer(line):
        offsets.append(match.start() - before)
        before += len(match[0])
    blank = np.array([[0.0 if name in _COUNTS else np.nan for name in VALUES]])
    if batch.in_graph is not None:
        # A word, which is the same in all lines of this layout.
        blank[0, VALUES.index("in_graph")] = batch.in_graph
    rank = [_RANK_DIGITS] * len(words)
    needed, longest, order = [*range(_STAMP_NUMBERS + len(words))], [*_STAMP_LENGTHS, *rank], []
    for column, (number, fraction) in known.items():
        order.append((VALUES.index(column), len(needed), fraction))
        needed += [number, number + 1] if fraction else [number]
        longest += [_WORD, _FRACTION_DIGITS] if fraction else [_WORD]
    shortest = [*_STAMP_LENGTHS, *[1] * (len(needed) - _STAMP_NUMBERS)]
    return _Layout(
        offsets=np.array(offsets),
        needed=np.array(needed),
        shortest=np.array(shortest),
        longest=np.array(longest),
        fields=tuple(order),
        prefill=batch.prefill,
        rank=words,
        blank=blank,
        device=device_of(line),
    )
