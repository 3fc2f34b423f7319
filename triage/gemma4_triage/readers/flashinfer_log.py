"""FlashInfer's own record of its calls: the log of FLASHINFER_LOGLEVEL 3, 5 or 10, and the index of its dumps.

A call is logged before it runs and its output after it, so a log that ends inside a call names the last one. At level 5
tensors have min and max: a page table whose highest id is no page of the cache beside it is seen without a GPU.
Sources: flashinfer/api_logging.py (_log_function_inputs, _dump_function_inputs).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from gemma4_dumps.wording import number_of
from gemma4_triage.finding import Confidence, Evidence, Finding
from gemma4_triage.readers.reading import MAX_FACTS, SERVE_GUARDED, Identity, Moment, NotThis, Reading, cut
from gemma4_triage.readers.text_file import Lines

LOG_KIND, DUMPS_KIND = "flashinfer-log", "flashinfer-dumps"
UNFINISHED, UNFINISHED_TITLE = "flashinfer-call-unfinished", "FlashInfer began a call and logged no output of it"
PAGE_RULE, PAGE_TITLE = "flashinfer-page-outside", "a call of FlashInfer was given a page that its cache does not have"
NAN_RULE, NAN_TITLE = "flashinfer-nan", "a call of FlashInfer had NaN in its tensors"
_MOST_FOUND = 8
_BEGINS = "FlashInfer API Call: "
# A search for a time before it takes the square of a line.
_MATCHED = 1000
_CALL = re.compile(r"\[?(\d{4}-\d\d-\d\d[T ][\d:.,]+)?\]?.*?FlashInfer API Call: (\S{1,300})")
_ARGUMENT = re.compile(r"  (arg\[\d+\]|\w{1,80})[:=]")
_SHAPE = re.compile(r"\s+shape=\(([\d, ]*)\)")
_STATISTIC = re.compile(r"\s+(min|max|nan_count|inf_count)=(-?[\d.]+(?:e[+-]?\d+)?|nan|inf|-inf)\b")
_TABLES = ("block_tables", "block_table", "page_table", "paged_kv_indices", "indices", "kv_indices")
_CACHES = ("kv_cache", "paged_kv_cache", "k_cache", "paged_k_cache")


@dataclass
class _Tensor:
    name: str
    line: int
    shape: tuple[int, ...] = ()
    statistics: dict[str, float] = field(default_factory=dict)


@dataclass
class _Call:
    name: str
    line: int
    time: str
    tensors: list[_Tensor] = field(default_factory=list)


def takes_log(head: bytes) -> bool:
    """Return whether a file begins as FlashInfer's log does, and is no serving log with such lines in it."""
    return b"FlashInfer API " in head and b"server_args=" not in head and b"Prefill batch" not in head


def read_logs(paths: Sequence[Path]) -> Iterator[Reading]:
    """Yield a reading for each log. Raises NotThis."""
    for path in paths:
        yield _read_log(path)


def _read_log(path: Path) -> Reading:
    lines = Lines(path)
    name = str(path)
    findings: dict[str, Finding] = {}
    calls, first_time, call = 0, "", None
    versions: list[tuple[str, str]] = []
    outputs = False
    for number, line in lines:
        if _BEGINS in line and (match := _CALL.search(line[:_MATCHED])):
            calls += 1
            call = _Call(match[2], number, match[1] or "")
            first_time = first_time or call.time
        elif call is not None and line.startswith("Output value:"):
            outputs = True
            _look_at(name, call, findings)
            call = None
        elif call is not None:
            _take(call, number, line)
        elif line.startswith(("FlashInfer version:", "CUDA toolkit version:", "  GPU 0:", "PyTorch version:")):
            label, _, value = line.strip().partition(":")
            versions.append((label, cut(value.strip())))
    if not calls and not versions:
        raise NotThis
    if call is not None:
        _look_at(name, call, findings)
        if outputs and not lines.problem:
            findings[UNFINISHED] = _unfinished(name, call)
    title = f"FlashInfer's log of {number_of(calls, 'call')}" + (
        f", the last one of {call.name} without output" if call else ""
    )
    moments = [Moment(_seconds(first_time), "FlashInfer's first call in it", "line 1")] if first_time else []
    if call is not None and call.time:
        moments.append(Moment(_seconds(call.time), f"FlashInfer began {call.name}", f"line {call.line}"))
    return Reading(
        name=name,
        kind=LOG_KIND,
        title=title,
        moments=tuple(moments),
        facts=tuple(versions[:MAX_FACTS]),
        findings=tuple(findings.values()),
        problem=lines.problem,
    )


def _take(call: _Call, number: int, line: str) -> None:
    if (match := _ARGUMENT.match(line)) and len(call.tensors) < 256:
        call.tensors.append(_Tensor(match[1], number))
    elif call.tensors and (match := _SHAPE.match(line)):
        sizes = tuple(int(size) for size in match[1].split(",")[:8] if size.strip()[:18])
        # Of a pair of caches the first one counts.
        call.tensors[-1].shape = call.tensors[-1].shape or sizes
    elif call.tensors and (match := _STATISTIC.match(line)):
        call.tensors[-1].statistics.setdefault(match[1], float(match[2]))


def _look_at(name: str, call: _Call, findings: dict[str, Finding]) -> None:
    if PAGE_RULE not in findings and (found := _page_outside(name, call)) is not None:
        findings[PAGE_RULE] = found
    bad = next((one for one in call.tensors if one.statistics.get("nan_count", 0) > 0 and _is_input(one)), None)
    if bad is not None and NAN_RULE not in findings:
        count = int(bad.statistics["nan_count"])
        findings[NAN_RULE] = Finding(
            rule=NAN_RULE,
            cause=f"FlashInfer's {call.name} was given {bad.name} with NaN in it, for the first time in this log.",
            confidence=Confidence.POSSIBLE,
            evidence=(
                Evidence(source=name, field=f"line {bad.line}", value=count, meaning=f"NaN values in {bad.name}"),
                Evidence(source=name, field=f"line {call.line}", value=call.name, meaning="the call"),
            ),
            ruled_out_if=("the tensor is a workspace or padding that the call does not read",),
            advice=("Look at what wrote that tensor before: NaN comes in with the first call that has it.",),
        )


def _is_input(tensor: _Tensor) -> bool:
    """Return whether what stands in a tensor is read: workspaces and outputs come as the allocator left them."""
    return not any(word in tensor.name for word in ("workspace", "buffer", "out", "lse"))


def _page_outside(name: str, call: _Call) -> Finding | None:
    """Hold the highest id of a page table against the pages of the cache in the same call."""
    table = next((one for one in call.tensors if one.name in _TABLES and "max" in one.statistics), None)
    cache = next((one for one in call.tensors if one.name in _CACHES and one.shape), None)
    if table is None or cache is None or len(cache.shape) < 3:
        return None
    highest, pages = table.statistics["max"], cache.shape[0]
    if not highest >= pages:
        return None
    return Finding(
        rule=PAGE_RULE,
        cause=f"{call.name} was given a page table whose highest id is no page of its cache.",
        confidence=Confidence.LIKELY,
        evidence=(
            Evidence(
                source=name, field=f"line {table.line}", value=int(highest), meaning=f"the highest of {table.name}"
            ),
            Evidence(source=name, field=f"line {cache.line}", value=pages, meaning=f"pages of {cache.name}"),
            Evidence(source=name, field=f"line {call.line}", value=call.name, meaning="the call"),
        ),
        ruled_out_if=("the entry lies beyond its row's length, where nothing is read",),
        advice=("Serve it guarded: the probe page-table checks every entry that is read, and says whose id it is.",),
        next_commands=(SERVE_GUARDED,),
    )


def _unfinished(name: str, call: _Call) -> Finding:
    shapes = ", ".join(f"{one.name} {list(one.shape)}" for one in call.tensors[:_MOST_FOUND] if one.shape)
    return Finding(
        rule=UNFINISHED,
        cause=f"The log ends inside {call.name}: this process went no further, or its last lines are missing.",
        confidence=Confidence.POSSIBLE,
        evidence=(
            Evidence(source=name, field=f"line {call.line}", value=call.name, meaning="the last call, without output"),
            Evidence(source=name, field=f"line {call.line}", value=cut(shapes) or None, meaning="its tensors"),
        ),
        ruled_out_if=(
            "the log was copied while the server ran",
            "the error is of an earlier kernel: GPU errors come late",
        ),
        advice=("CUDA_LAUNCH_BLOCKING=1 makes the call that is logged last the one that failed.",),
    )


SESSION, ONE_CALL = "session.jsonl", "metadata.jsonl"
"""The index of all dumps of a folder, and the same of one call in a folder of its own beside its tensors."""
CALL_FOLDER = re.compile(r"_pid\d+_.+_call\d+$")


def takes_dumps(head: bytes) -> bool:
    """Return whether a file is an index of FlashInfer's dumps: one JSON object a line."""
    return head[:1] == b"{" and b'"function_name"' in head and b'"execution_status"' in head


def read_dumps(paths: Sequence[Path]) -> Iterator[Reading]:
    """Yield one reading of the indices of a folder. Tensors beside them are not read. Raises NotThis."""
    states: dict[str, dict[str, Any]] = {}
    lines_read, problem = 0, ""
    for path in paths:
        lines = Lines(path)
        for number, line in lines:
            record = _record(line)
            lines_read += record is not None
            if record is not None and len(states) < 100_000:
                key = str(record.get("dump_dir") or f"{path}:{number}")
                states[key] = {**states.get(key, {}), **record, "_line": number}
        problem = problem or lines.problem
    if not lines_read:
        raise NotThis
    yield _of_states(paths, states, problem)


def _record(line: str) -> dict[str, Any] | None:
    try:
        record = from_json(line, allow_inf_nan=False)
    except ValueError:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("function_name"), str) else None


def _of_states(paths: Sequence[Path], states: dict[str, dict[str, Any]], problem: str) -> Reading:
    name = str(paths[0]) if len(paths) == 1 else os.path.commonpath([str(path.parent) for path in paths])
    begun = [one for one in states.values() if one.get("execution_status") == "inputs_saved"]
    pids = {pid for one in states.values() if isinstance(pid := one.get("process_id"), int)}
    times = [time for one in states.values() if (time := _seconds(str(one.get("timestamp")))) is not None]
    last = max(begun, key=lambda one: str(one.get("timestamp")), default=None)
    findings = []
    if last is not None and len(begun) < len(states):
        findings.append(_unfinished_dump(name, last))
    return Reading(
        name=name,
        kind=DUMPS_KIND,
        title=f"FlashInfer's dumps of {number_of(len(states), 'call')}, {len(begun)} without outputs",
        identity=Identity(pids=tuple(sorted(pids)[:64])),
        moments=tuple(Moment(time, "FlashInfer's first dump in it") for time in sorted(times)[:1]),
        facts=tuple(_names(states.values())),
        findings=tuple(findings),
        problem=problem,
    )


def _names(states: Iterable[dict[str, Any]]) -> list[tuple[str, str]]:
    counts: dict[str, int] = {}
    for one in states:
        counts[cut(one["function_name"])] = counts.get(cut(one["function_name"]), 0) + 1
    return [
        (name, number_of(count, "call"))
        for name, count in sorted(counts.items(), key=lambda pair: -pair[1])[:MAX_FACTS]
    ]


def _unfinished_dump(name: str, record: dict[str, Any]) -> Finding:
    call = cut(record["function_name"])
    return Finding(
        rule=UNFINISHED,
        cause=f"FlashInfer saved the inputs of {call} and never its outputs: this process went no further, or was read "
        "while it ran.",
        confidence=Confidence.POSSIBLE,
        evidence=(
            Evidence(source=name, field=f"line {record['_line']}", value=call, meaning="the last call without outputs"),
            Evidence(source=name, field="dump_dir", value=cut(str(record.get("dump_dir"))), meaning="its inputs"),
        ),
        ruled_out_if=("the folder was copied while the server ran",),
        advice=("flashinfer.api_logging.replay_from_dump computes that call again on such a GPU.",),
    )


def _seconds(time: str) -> float | None:
    try:
        return datetime.fromisoformat(time.strip("[] ").replace(",", ".")).timestamp()
    except (ValueError, OverflowError):
        return None
