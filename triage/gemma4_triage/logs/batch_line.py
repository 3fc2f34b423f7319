"""Reads the two lines that a scheduler repeats, as SGLang 0.4 ("Decode batch. #…") to 0.5.23 write them.

They come from report_prefill_stats and report_decode_stats, in scheduler_components/metrics_reporter.py since 0.5.13.
Fields are read by name, so a field more or less, as other releases have it, changes nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

MARK = b" batch"

_LINE = re.compile(rb"(?:Prefill|Decode) batch(?: \[\d+\])?[,.] (?=#)")
_FIELD = re.compile(rb"([^ ,:][^,:]*): ([^,]*)")
_STAMPED = rb"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)((?: [A-Z]+\d{1,4}){0,4})\] "
_NUMBER = rb"(\d{1,9}(?:\.\d{1,9})?)"
_COUNT = rb"(\d{1,9})"
_COUNTS = (b"#running-req", b"#queue-req", b"#new-seq", b"#new-token", b"#cached-token")
_NUMBERS = (b"full token usage", b"token usage", b"swa token usage", b"accept len", b"gen throughput (token/s)")
_MOST_LAYOUTS = 8
_LONGEST_NUMBER = 18


class BatchLine(NamedTuple):
    """What one batch line says; None stands where it does not say, 0 in a count.

    Attributes:
        prefill: whether the line is of a prefill, and not of decode steps.
        running: how many requests are running.
        queued: how many requests wait.
        full_usage: the share of the full pool in use, 0 to 1; of the only pool, where a model has one.
        swa_usage: the share of the sliding-window pool in use, 0 to 1.
        new_requests: how many requests the prefill took in.
        new_tokens: how many tokens the prefill computed.
        cached_tokens: how many prompt tokens of the prefill came from the prefix cache.
        accept_length: tokens per request and verify step of a decode line, with speculative decoding only.
        generated_per_s: tokens per second of a decode line.
    """

    prefill: bool
    running: int
    queued: int | None
    full_usage: float | None
    swa_usage: float | None
    new_requests: int = 0
    new_tokens: int = 0
    cached_tokens: int = 0
    accept_length: float | None = None
    generated_per_s: float | None = None


class LayoutReader:
    """Reads batch lines whose fields stand in an order that was seen before, several times as fast as `find_batch`.

    A server writes two orders of fields, and nearly all of a log in them.
    """

    def __init__(self) -> None:
        self._layouts: list[tuple[re.Pattern[bytes], Callable[..., tuple[str, str, BatchLine]]]] = []
        self._seen: set[bytes] = set()

    def read(self, line: bytes) -> tuple[str, str, BatchLine] | None:
        """Return date and time, rank and what the line says; None if it is in no layout that was seen before."""
        for at, (layout, build) in enumerate(self._layouts):
            match = layout.fullmatch(line)
            if match is not None:
                if at:
                    self._layouts.insert(0, self._layouts.pop(at))
                return build(*match.groups())
        return None

    def learn(self, line: bytes, begin: int) -> None:
        """Take note of the layout of a line whose batch begins at byte `begin`, behind nothing but a stamp."""
        if len(self._seen) >= _MOST_LAYOUTS:
            return
        head = _LINE.match(line, begin)
        fields = _FIELD.findall(line, begin if head is None else head.end())
        names = [name for name, _ in fields]
        key = b",".join(names)
        if head is None or b"[" in head[0] or key in self._seen or len({*names}) < len(names):
            return
        self._seen.add(key)
        parts = []
        for name in names:
            value = _COUNT if name in _COUNTS else _NUMBER if name in _NUMBERS else b"[^,]{0,40}"
            parts.append(re.escape(name) + b": " + value)
        pattern = _STAMPED + re.escape(head[0]) + b", ".join(parts) + rb"(?:, ?)?"
        used = [name for name in names if name in _COUNTS or name in _NUMBERS]
        self._layouts.append((re.compile(pattern), _builder(line.startswith(b"P", begin), used)))


def _builder(prefill: bool, used: list[bytes]) -> Callable[..., tuple[str, str, BatchLine]]:
    """Return what makes a record of the groups of a layout: its stamp, its rank and the values of the fields `used`."""
    where = {name: used.index(name) for name in used}
    full = where.get(b"full token usage", where.get(b"token usage"))
    running, queued, swa = (where.get(name) for name in (b"#running-req", b"#queue-req", b"swa token usage"))
    accept, rate = where.get(b"accept len"), where.get(b"gen throughput (token/s)")
    seqs, new, cached = (where.get(name) for name in (b"#new-seq", b"#new-token", b"#cached-token"))

    @lru_cache(maxsize=64)
    def text(stamp: bytes) -> str:
        return stamp.decode().strip().replace(" ", "T", 1) if stamp[:1] == b"2" else stamp.decode().strip()

    def build(time: bytes, rank: bytes, *values: bytes) -> tuple[str, str, BatchLine]:
        return (
            text(time),
            text(rank),
            BatchLine(
                prefill,
                0 if running is None else int(values[running]),
                None if queued is None else int(values[queued]),
                None if full is None else float(values[full]),
                None if swa is None else float(values[swa]),
                0 if seqs is None or not prefill else int(values[seqs]),
                0 if new is None or not prefill else int(values[new]),
                0 if cached is None or not prefill else int(values[cached]),
                None if accept is None or prefill else float(values[accept]),
                None if rate is None or prefill else float(values[rate]),
            ),
        )

    return build


def find_batch(line: bytes) -> tuple[int, BatchLine] | None:
    """Return where the last batch line in `line` begins and what it says; None if there is none, or too little of it.

    The last, because processes that share a file may write into each other's lines.
    """
    found = _LINE.search(line)
    if found is None:
        return None
    while (later := _LINE.search(line, found.end())) is not None:
        found = later
    begin, end = found.span()
    fields = dict(_FIELD.findall(line, end))
    read = _prefill(fields) if line.startswith(b"P", begin) else _decode(fields)
    return None if read is None else (begin, read)


def _prefill(fields: dict[bytes, bytes]) -> BatchLine | None:
    new, cached = _count(fields.get(b"#new-token")), _count(fields.get(b"#cached-token"))
    if new is None or cached is None:
        return None
    full, swa = _usages(fields)
    return BatchLine(
        prefill=True,
        running=_count(fields.get(b"#running-req")) or 0,
        queued=_count(fields.get(b"#queue-req")),
        full_usage=full,
        swa_usage=swa,
        new_requests=_count(fields.get(b"#new-seq")) or 0,
        new_tokens=new,
        cached_tokens=cached,
    )


def _decode(fields: dict[bytes, bytes]) -> BatchLine | None:
    running = _count(fields.get(b"#running-req"))
    if running is None:
        return None
    full, swa = _usages(fields)
    return BatchLine(
        prefill=False,
        running=running,
        queued=_count(fields.get(b"#queue-req")),
        full_usage=full,
        swa_usage=swa,
        accept_length=_number(fields.get(b"accept len")),
        generated_per_s=_number(fields.get(b"gen throughput (token/s)")),
    )


def _usages(fields: dict[bytes, bytes]) -> tuple[float | None, float | None]:
    full = _number(fields.get(b"full token usage"))
    if full is None:
        full = _number(fields.get(b"token usage"))
    return full, _number(fields.get(b"swa token usage"))


def _count(value: bytes | None) -> int | None:
    if value is None or len(value) > _LONGEST_NUMBER:
        return None
    try:
        return max(0, int(value))
    except ValueError:
        return None


def _number(value: bytes | None) -> float | None:
    """Finite, and not negative; None for anything else."""
    if value is None or len(value) > _LONGEST_NUMBER:
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
