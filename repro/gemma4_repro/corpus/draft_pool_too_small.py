"""A draft that reads beyond its pool."""

from gemma4_repro.detection.case import FaultCase, Origin
from gemma4_repro.detection.finding import Finding
from gemma4_repro.detection.loads import BRIEF

CASE = FaultCase(
    id="draft-pool-too-small",
    title="the pool that the draft reads ends before the allocator's",
    origin=Origin("SGLang 17630", "speculation on a sliding-window model dies of an index out of bounds under load"),
    injected="the draft is bound to a view of the target's full pool that holds 8 pages",
    inject=("draft-pool-too-small",),
    workload=BRIEF,
    findings=(
        Finding("geometry", "geometry", "pool_too_small", {"role": "draft"}),
        Finding(
            "page-table",
            "page-table-bounds",
            "out_of_range",
            {
                "role": "draft",
                "site": "TRTLLMHAAttnBackend.init_forward_metadata",
                "layer.type": "full",
                "provenance.table_space": "full",
                "provenance.buffer_space": "full",
            },
        ),
    ),
)
