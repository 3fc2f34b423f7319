"""Write locations of the step before, copied into a buffer of this step's size."""

from gemma4_repro.detection.case import FaultCase, Origin
from gemma4_repro.detection.finding import Finding
from gemma4_repro.detection.loads import BRIEF

CASE = FaultCase(
    id="eager-out-cache-loc",
    title="the draft's batch carries the write locations that target verify left",
    origin=Origin(
        "SGLang 29616", "with CUDA graphs off, the first draft after a verify dies on tensor sizes, 29 and 30"
    ),
    injected="nothing: the release has it. The fix is off",
    without=("eager-out-cache-loc",),
    workload=BRIEF,
    findings=(
        Finding(
            "batch-shapes",
            "batch-shapes",
            "stale_write_rows",
            {"role": "draft", "site": "ModelRunner._eager_fb_view", "forward_mode": "DECODE"},
        ),
    ),
)
