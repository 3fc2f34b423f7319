"""An allocator that hands out more than it has."""

from gemma4_repro.detection.case import FaultCase, Origin
from gemma4_repro.detection.finding import Finding
from gemma4_repro.detection.loads import BRIEF
from gemma4_repro.detection.proofs import first_page_past_the_end

CASE = FaultCase(
    id="swa-alloc-oob",
    title="the SWA allocator hands out a slot beyond its pool",
    origin=Origin("SGLang 9123", "the same symptom, one station earlier: the index is wrong when it is handed out"),
    injected="one decode allocation maps its last token to the first slot past the sliding-window buffer",
    inject=("swa-alloc-oob",),
    workload=BRIEF,
    mtp=False,
    findings=(
        Finding(
            "swa-allocator",
            "swa-alloc-range",
            "alloc_out_of_range",
            {"site": "SWATokenToKVPoolAllocator.alloc_decode", "pool_kind": "swa"},
            (first_page_past_the_end,),
        ),
        Finding(
            "page-table",
            "page-table-bounds",
            "write_out_of_range",
            {"role": "target", "layer.type": "sliding", "provenance.buffer_space": "swa"},
            (first_page_past_the_end,),
        ),
    ),
)
