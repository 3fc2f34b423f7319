"""Full slots keep a way to SWA pages that were given back."""

from gemma4_repro.detection.case import FaultCase, Origin
from gemma4_repro.detection.finding import Finding
from gemma4_repro.detection.loads import PAST_THE_WINDOW
from gemma4_repro.detection.proofs import owner_is_known

CASE = FaultCase(
    id="stale-mapping",
    title="full-to-SWA mapping outlives the SWA page, which is then freed twice",
    origin=Origin(
        "SGLang 25805", "an assertion says that more SWA slots are free than the pool has, after many requests"
    ),
    injected="free_swa leaves the mapping of the slots that it frees as it was",
    inject=("stale-mapping",),
    workload=PAST_THE_WINDOW,
    findings=(
        Finding(
            "swa-allocator",
            "swa-stale-mapping",
            "stale_mapping",
            {"site": "SWATokenToKVPoolAllocator.free_swa", "pool_kind": "swa"},
        ),
        Finding("leak-ledger", "leak-audit", "stale_mapping", {"pool_kind": "full"}, (owner_is_known,)),
    ),
)
