"""A mapping that is looked up too late."""

from gemma4_repro.detection.case import FaultCase, Origin
from gemma4_repro.detection.finding import Finding
from gemma4_repro.detection.loads import BRIEF
from gemma4_repro.detection.proofs import one_swa_page_missing, owner_is_known

CASE = FaultCase(
    id="deferred-free-after-replacement",
    title="a grouped free releases the SWA page that replaced the one it was asked to free",
    origin=Origin("SGLang 36081", "one SWA page is missing after grouped frees, and the server's own check stops it"),
    injected="one SWA page of a free group is replaced before the group is flushed",
    inject=("deferred-free-after-replacement",),
    workload=BRIEF,
    findings=(
        Finding("leak-ledger", "leak-audit", "pool_leak", {"pool_kind": "swa"}, (owner_is_known, one_swa_page_missing)),
    ),
)
