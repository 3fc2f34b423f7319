"""One id too far at the end of the SWA pool."""

from gemma4_repro.detection.case import FaultCase, Origin
from gemma4_repro.detection.finding import Finding
from gemma4_repro.detection.loads import BRIEF
from gemma4_repro.detection.proofs import first_page_past_the_end

CASE = FaultCase(
    id="page-past-the-end",
    title="a page id one past the end of the sliding-window pool",
    origin=Origin("SGLang 9123", "illegal memory access on a sliding-window model as the last SWA pages come into use"),
    injected="the last live column of one row of the SWA table holds the number of pages in the buffer",
    inject=("page-past-the-end",),
    workload=BRIEF,
    findings=(
        Finding(
            "page-table",
            "page-table-bounds",
            "out_of_range",
            {
                "role": "target",
                "site": "TRTLLMHAAttnBackend.init_forward_metadata",
                "layer.type": "sliding",
                "provenance.table_space": "swa",
                "provenance.buffer_space": "swa",
            },
            (first_page_past_the_end,),
        ),
    ),
)
