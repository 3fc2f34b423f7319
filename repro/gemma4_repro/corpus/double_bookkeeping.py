"""Finished twice, released never."""

from gemma4_repro.detection.case import FaultCase, Origin
from gemma4_repro.detection.finding import Finding
from gemma4_repro.detection.loads import BRIEF
from gemma4_repro.detection.proofs import owner_is_known

CASE = FaultCase(
    id="double-bookkeeping",
    title="requests that V1 verify finished are never released",
    origin=Origin(
        "SGLang 7130", "with MTP and pages of several tokens, the server's own check finds tokens that leaked"
    ),
    injected="the processing of decode results skips finished requests, as it does with overlap scheduling",
    inject=("double-bookkeeping",),
    workload=BRIEF,
    findings=(Finding("leak-ledger", "leak-audit", "pool_leak", proofs=(owner_is_known,)),),
)
