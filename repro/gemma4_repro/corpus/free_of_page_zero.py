"""The dummy page becomes a free page."""

from gemma4_repro.detection.case import FaultCase, Origin
from gemma4_repro.detection.finding import Finding
from gemma4_repro.detection.loads import BRIEF
from gemma4_repro.detection.proofs import slot_of_page_zero

CASE = FaultCase(
    id="free-of-page-zero",
    title="a caller frees slot 0, an unset entry of a request's row",
    origin=Origin(
        "SGLang 38519", "slots without an SWA peer are freed as page 0, until more is free than the pool has"
    ),
    injected="a finished request also frees the last entry of its row, which was never written",
    inject=("free-of-page-zero",),
    workload=BRIEF,
    trap=True,
    findings=(
        Finding(
            "swa-allocator",
            "swa-free-range",
            "free_out_of_range",
            {"site": "SWATokenToKVPoolAllocator.free", "pool_kind": "full"},
            (slot_of_page_zero,),
        ),
    ),
)
