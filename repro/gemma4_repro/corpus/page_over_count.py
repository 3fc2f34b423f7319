"""The sums exceed the pool by one page."""

from gemma4_repro.detection.case import FaultCase, Origin
from gemma4_repro.detection.finding import Finding
from gemma4_repro.detection.loads import PAST_THE_WINDOW

CASE = FaultCase(
    id="page-over-count",
    title="the prefix cache counts an SWA page that the pool has back",
    origin=Origin(
        "SGLang 27789", "SGLang's own check stops the server: the parts of the SWA pool exceed it by one page"
    ),
    injected="a finished request tells the prefix cache of one evicted SWA page less than there is",
    inject=("page-over-count",),
    workload=PAST_THE_WINDOW,
    findings=(Finding("leak-ledger", "leak-audit", "stale_mapping", {"pool_kind": "swa"}),),
)
