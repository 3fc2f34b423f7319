"""In range, and wrong: only the accept length tells."""

from gemma4_repro.detection.case import FaultCase, Origin
from gemma4_repro.detection.finding import Finding
from gemma4_repro.detection.loads import UNDER_PRESSURE

CASE = FaultCase(
    id="full-draft-through-swa-map",
    title="the draft's full layers read the full buffer with translated page ids",
    origin=Origin("SGLang 25103", "no error at all: accept length is lower than it should be"),
    injected="the draft gets the sliding-window page table for its full layers too",
    inject=("full-draft-through-swa-map",),
    workload=UNDER_PRESSURE,
    findings=(
        Finding(
            "page-table",
            "page-table-bounds",
            "wrong_space",
            {
                "role": "draft",
                "site": "TRTLLMHAAttnBackend.init_forward_metadata",
                "layer.type": "full",
                "provenance.table_space": "swa",
                "provenance.buffer_space": "full",
            },
        ),
    ),
)
