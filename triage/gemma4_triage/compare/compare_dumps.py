"""Two dumps, whole."""

from __future__ import annotations

from gemma4_triage.compare.difference import Comparison
from gemma4_triage.compare.events import compare_events
from gemma4_triage.compare.sections import VOLATILE, manifest_differences
from gemma4_triage.compare.side import Side
from gemma4_triage.compare.tensors import compare_tensors


def compare_dumps(a: Side, b: Side, rows: int) -> Comparison:
    """rows: how many differing entries of each tensor to list; all are counted. Raises DumpError."""
    manifests = manifest_differences(a.dump.manifest, b.dump.manifest)
    volatile = manifests.pop(VOLATILE, ())
    return Comparison(
        sections=manifests,
        tensors=compare_tensors(a, b, rows),
        tensor_count=len(a.dump.manifest.tensors.keys() | b.dump.manifest.tensors.keys()),
        events=compare_events(a, b),
        volatile=volatile,
    )
