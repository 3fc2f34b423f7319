"""The sums exceed the pool by one page."""

from gemma4_repro.detection.case import FaultCase, Origin
from gemma4_repro.detection.finding import Finding
from gemma4_repro.detection.loads import PAST_THE_WINDOW
from gemma4_repro.detection.proofs import one_swa_page_too_many, owner_is_known

CASE = FaultCase(
    id="page-over-count",
    title="the prefix cache counts an SWA page that the pool has back",
    origin=Origin(
        "SGLang 27789", "SGLang's own check stops the server: the parts of the SWA pool exceed it by one page"
    ),
    injected="a finished request tells the prefix cache of one evicted SWA page less than there is",
    inject=("page-over-count",),
    workload=PAST_THE_WINDOW,
    findings=(
        Finding(
            "leak-ledger",
            "leak-audit",
            "null_page_live",
            {"pool_kind": "full"},
            (owner_is_known, one_swa_page_too_many),
        ),
    ),
)
