"""Reads the two lines that a scheduler repeats, as SGLang 0.4 ("Decode batch. #…") to 0.5.23 write them.

They come from report_prefill_stats and report_decode_stats, in scheduler_components/metrics_reporter.py since 0.5.13.
Fields are read by name, so a field more or less, as other releases have it, changes nothing. One line is read here;
`batch_table` reads those of a whole block at once.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from gemma4_triage.logs.facts import Device

MARK = b" batch"

LINE = re.compile(rb"(?:Prefill|Decode) batch(?: \[\d+\])?[,.] (?=#)")
FIELD = re.compile(rb"([^ ,:][^,:]*): ([^,]*)")
NAN_IN_BATCH = "nan_in_batch"
"""The remark of the first batch line in which NOT_A_NUMBER is found."""
NOT_A_NUMBER = re.compile(rb"\b(?:accept (?:len|rate)|(?:full |swa )?token usage): -?nan\b")
_LONGEST_NUMBER = 18
_IN_GRAPH = {b"True": 1, b"False": 0}


class BatchLine(NamedTuple):
    """What one batch line says; None where it does not say, 0 in a count.

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
        in_graph: 1 if the decode steps ran as a CUDA graph, 0 if they did not.
        transferring: how many requests a split server holds whose KV is on its way.
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
    in_graph: int | None = None
    transferring: int | None = None


def device_of(line: bytes) -> Device:
    """Return what a batch line says that its batch ran on; "" if it says nothing."""
    return "cuda" if b"cuda graph: " in line else "cpu" if b"cpu graph: " in line else ""


def find_batch(line: bytes) -> tuple[int, BatchLine] | None:
    """Return where the last batch line in `line` begins and what it says; None if there is none, or too little of it.

    The last, because processes that share a file may write into each other's lines.
    """
    found = LINE.search(line)
    if found is None:
        return None
    while (later := LINE.search(line, found.end())) is not None:
        found = later
    begin, end = found.span()
    fields = dict(FIELD.findall(line, end))
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
        transferring=_count(fields.get(b"#inflight-req")),
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
        in_graph=_IN_GRAPH.get(fields.get(b"cuda graph", b"")),
        transferring=_count(fields.get(b"#transfer-req")),
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
