"""A profiler's trace cut down to what says where GPU time goes: launches, calls that made them, waits, named steps.

Stacks, operators, shapes, paths and host names go. Nothing of a launch is changed but its arguments: device, stream,
correlation, grid and block stay.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_GPU = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS = ("cuda_runtime", "cuda_driver")
_SPANS = ("user_annotation", "gpu_user_annotation")
_STEP_NAMES = ("ProfilerStep#", "step[")
# The host waits for the GPU in these; the last is torch's read of one value.
_WAITS = ("Synchronize", "aten::_local_scalar_dense")
_ARGUMENTS = ("device", "stream", "correlation", "grid", "block")
_EVENT = ("ph", "cat", "name", "pid", "tid", "ts", "dur")


class NotATrace(ValueError):
    """The document holds no events, or none of a GPU."""


def trim(document: Any, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """recorded: how the trace came to be, stored beside the events. Raises NotATrace."""
    events = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(events, list):
        raise NotATrace('the profiler left a file without "traceEvents"')
    launches = [event for event in events if event.get("cat") in _GPU]
    if not launches:
        raise NotATrace(f"none of the {len(events)} events in the profiler's trace ran on a GPU")
    correlations = {_correlation(event) for event in launches}
    kept = [event for event in events if _is_kept(event, correlations)]
    properties = document.get("deviceProperties", [])
    return {
        "schemaVersion": document.get("schemaVersion", 1),
        "deviceProperties": [{key: one.get(key) for key in ("id", "name")} for one in properties],
        "displayTimeUnit": document.get("displayTimeUnit", "ms"),
        "gemma4_triage": dict(recorded),
        "traceEvents": [_smaller(event) for event in kept],
    }


def write_trace(document: Mapping[str, Any], path: Path) -> int:
    """gzip, whole or not at all, the same bytes for the same document; the size in bytes is returned."""
    packed = gzip.compress(json.dumps(document, separators=(",", ":")).encode(), 9, mtime=0)
    temporary = path.with_name(f".{path.name[:100]}.{os.getpid()}")
    try:
        temporary.write_bytes(packed)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return len(packed)


def _is_kept(event: Mapping[str, Any], correlations: set[Any]) -> bool:
    kind = event.get("cat")
    if kind in (*_CALLS, "cpu_op") and str(event.get("name")).endswith(_WAITS):
        return True
    if kind in _CALLS:
        return _correlation(event) in correlations
    return kind in _GPU or (kind in _SPANS and str(event.get("name")).startswith(_STEP_NAMES))


def _correlation(event: Mapping[str, Any]) -> Any:
    return event.get("args", {}).get("correlation", "none")


def _smaller(event: Mapping[str, Any]) -> dict[str, Any]:
    arguments = {key: event["args"][key] for key in _ARGUMENTS if key in event.get("args", {})}
    return {key: event[key] for key in _EVENT if key in event} | {"args": arguments}
