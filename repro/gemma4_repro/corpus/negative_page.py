"""An index that was never assigned reaches a kernel."""

from gemma4_repro.detection.case import FaultCase, Origin
from gemma4_repro.detection.finding import Finding
from gemma4_repro.detection.loads import BRIEF

CASE = FaultCase(
    id="negative-page",
    title="the mark -1 of an unassigned page in a live column",
    origin=Origin("TensorRT-LLM 16280", "draft tokens cross into a page whose offset is still -1: illegal access"),
    injected="the last live column of one row of the full table holds -1",
    inject=("negative-page",),
    workload=BRIEF,
    findings=(
        Finding(
            "page-table",
            "page-table-bounds",
            "negative",
            {
                "role": "target",
                "site": "TRTLLMHAAttnBackend.init_forward_metadata",
                "layer.type": "full",
                "provenance.table_space": "full",
                "provenance.buffer_space": "full",
            },
        ),
    ),
)
