"""Half an allocation."""

from gemma4_repro.detection.case import FaultCase, Origin
from gemma4_repro.detection.finding import Finding
from gemma4_repro.detection.loads import BRIEF

CASE = FaultCase(
    id="alloc-on-one-pool",
    title="a decode allocation succeeds in the full pool and fails in the SWA pool",
    origin=Origin(
        "SGLang 7909", "paged pool pairs allocate one after the other; a failure of the second keeps the first"
    ),
    injected="the SWA side of one alloc_decode gives nothing",
    inject=("alloc-on-one-pool",),
    mtp=False,
    workload=BRIEF,
    findings=(
        Finding(
            "swa-allocator",
            "swa-lost-pages",
            "pool_leak",
            {"site": "SWATokenToKVPoolAllocator.alloc_decode", "pool_kind": "full"},
        ),
    ),
)
