"""The seed bug: the draft's backend believes that there is no SWA pool."""

from gemma4_repro.detection.case import FaultCase, Origin
from gemma4_repro.detection.finding import Finding
from gemma4_repro.detection.loads import UNDER_PRESSURE

_PLACE = {
    "role": "draft",
    "layer.type": "sliding",
    "provenance.table_space": "full",
    "provenance.buffer_space": "swa",
    "site": "TRTLLMHAAttnBackend.init_forward_metadata",
}

CASE = FaultCase(
    id="swa-state-stale",
    title="draft reads the sliding-window buffer with full-pool page ids",
    origin=Origin(
        "SGLang 26957",
        "MTP on trtllm_mha dies of an illegal memory access once the SWA pool is mostly in use",
    ),
    injected="the draft backend takes its SWA state from its own pool, which is none; the fix is off",
    inject=("swa-state-stale",),
    without=("swa-state-swap",),
    workload=UNDER_PRESSURE,
    findings=(
        Finding("geometry", "geometry", "swa_state", {"role": "draft"}),
        Finding("page-table", "page-table-bounds", "wrong_space", _PLACE),
        Finding("page-table", "page-table-bounds", "out_of_range", _PLACE),
    ),
)
