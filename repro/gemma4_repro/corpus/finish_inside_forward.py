"""A worker that ends requests which the scheduler wants to end."""

from gemma4_repro.detection.case import FaultCase, Origin
from gemma4_repro.detection.finding import Finding
from gemma4_repro.detection.loads import BRIEF
from gemma4_repro.detection.proofs import owner_is_known

CASE = FaultCase(
    id="finish-inside-forward",
    title="MTP with overlap scheduling, and a verification that ends requests itself",
    origin=Origin(
        "SGLang 7130", "every request that ends leaves a few tokens behind that are neither free nor in the cache"
    ),
    injected="the verification of spec v2 ends requests inside the forward, as that of V1 does",
    inject=("finish-inside-forward",),
    along=("mtp-v2",),
    engine={"disable_overlap_schedule": False},
    workload=BRIEF,
    findings=(Finding("leak-ledger", "leak-audit", "pool_leak", proofs=(owner_is_known,)),),
)
