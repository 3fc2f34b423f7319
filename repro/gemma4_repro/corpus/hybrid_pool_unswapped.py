"""The pool swap ends at a wrapper."""

from gemma4_repro.detection.case import FaultCase, Origin
from gemma4_repro.detection.finding import Finding
from gemma4_repro.detection.loads import BRIEF

CASE = FaultCase(
    id="hybrid-pool-unswapped",
    title="the leaf of a hybrid backend keeps the draft's dummy pool",
    origin=Origin("SGLang 26966", "its fix leaves the hybrid case: a target layer id indexes a list that is too short"),
    injected="the draft's backend is wrapped as a hybrid one; the fix that walks to the leaves is off",
    inject=("hybrid-pool-unswapped",),
    without=("swa-state-swap",),
    workload=BRIEF,
    findings=(
        Finding("geometry", "geometry", "geometry_mismatch", {"role": "draft"}),
        Finding(
            "page-table",
            "page-table-bounds",
            "wrong_space",
            {"role": "draft", "provenance.buffer_space": "unknown", "provenance.table_space": ("swa", "full")},
        ),
    ),
)
