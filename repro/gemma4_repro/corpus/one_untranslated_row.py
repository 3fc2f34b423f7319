"""One request of eight."""

from gemma4_repro.detection.case import FaultCase, Origin
from gemma4_repro.detection.finding import Finding
from gemma4_repro.detection.loads import UNDER_PRESSURE
from gemma4_repro.detection.proofs import all_in_one_row

CASE = FaultCase(
    id="one-untranslated-row",
    title="one row of eight holds full-pool ids in the sliding-window table",
    origin=Origin(
        "SGLang 24402", "page tables of speculative metadata reach sliding layers untranslated: illegal access"
    ),
    injected="row 5 of the SWA table is copied from the full table",
    inject=("one-untranslated-row",),
    workload=UNDER_PRESSURE,
    findings=(
        Finding(
            "page-table",
            "page-table-bounds",
            "out_of_range",
            {"role": "target", "layer.type": "sliding", "provenance.buffer_space": "swa", "offences.0.row": 5},
            (all_in_one_row,),
        ),
    ),
)
