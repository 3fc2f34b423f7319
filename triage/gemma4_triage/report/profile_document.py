"""A step's profile as the JSON document of `profile --json`. Times are microseconds, and means per step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gemma4_triage.step_profile.analyse import DeviceProfile
from gemma4_triage.step_profile.trace_file import TraceFile
from gemma4_triage.step_profile.trace_tables import Counts

_STEPS_LISTED = 500
_MOST_CHARACTERS = 10_000


def profile_document(trace: TraceFile, counts: Counts, profiles: Sequence[DeviceProfile]) -> dict[str, Any]:
    """trace: read to its end."""
    return {
        "file": trace.name,
        "size_bytes": trace.size_bytes,
        "device_names": device_names(trace),
        "recorded": _recorded(trace),
        "events": asdict(counts),
        "devices": [_device(profile) for profile in profiles],
    }


def device_names(trace: TraceFile) -> list[str]:
    """Return them as the profiler wrote them; none if it did not."""
    found = trace.header.get("deviceProperties")
    named = [one.get("name") for one in found if isinstance(one, dict)] if isinstance(found, list) else []
    return [str(name)[:100] for name in named[:64] if name]


def _recorded(trace: TraceFile) -> dict[str, Any] | None:
    """Say what the recorder of the trace says about it, if that can be printed: anyone may have written the file."""
    found = trace.header.get("gemma4_triage")
    try:
        text = json.dumps(found, allow_nan=False)
    except ValueError:
        return None
    return found if isinstance(found, dict) and len(text) <= _MOST_CHARACTERS else None


def _device(profile: DeviceProfile) -> dict[str, Any]:
    cut = profile.cut
    return {
        "device": profile.device,
        "launches_in_trace": profile.launches_in_trace,
        "streams": profile.streams,
        "steps": {
            "method": profile.method,
            "count": len(cut.chosen),
            "labels": list(profile.labels),
            "left_out": dict(cut.left_out),
            "launches_before": cut.before,
            "launches_after": cut.after,
            "wall_us": asdict(profile.wall_us),
            "busy_us": asdict(profile.busy_us),
            "kernel_us": profile.kernel_us,
            "launches": profile.launches,
            "each": [
                {"start_us": step.start_us, "wall_us": step.wall_us, "launches": step.launches}
                for step in cut.chosen[:_STEPS_LISTED]
            ],
        },
        "layers": asdict(profile.layers) | {"launches_per_layer": per_layer(profile)},
        "families": [asdict(family) for family in profile.families],
        "idle": asdict(profile.idle),
        "host_waits": [asdict(wait) for wait in profile.waits],
        "replaceable": [asdict(use) for use in profile.replaceable],
        "replaceable_total": {"launches": profile.replaceable_launches, "gpu_us": profile.replaceable_us},
    }


def per_layer(profile: DeviceProfile) -> float | None:
    """Launches of the scope of `layers`, by their count."""
    layers = profile.layers
    return layers.launches / layers.count if layers.count else None
