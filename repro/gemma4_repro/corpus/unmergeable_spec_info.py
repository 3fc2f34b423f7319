"""A round in which every request finishes."""

from gemma4_repro.detection.case import FaultCase, Origin
from gemma4_repro.detection.finding import Finding
from gemma4_repro.detection.loads import BRIEF

CASE = FaultCase(
    id="unmergeable-spec-info",
    title="a batch without a draft input after a round in which all its requests finished",
    origin=Origin("SGLang 26859", "the scheduler dies of a missing merge_batch when a prefill joins such a batch"),
    injected="the worker leaves the verify input on the batch instead of an empty draft input; the fix is off",
    inject=("unmergeable-spec-info",),
    without=("spec-info-guards",),
    workload=BRIEF,
    findings=(
        Finding(
            "batch-shapes",
            "batch-shapes",
            "unusable_spec_info",
            {"site": "ScheduleBatch.filter_batch", "scalars.spec_info": "FrozenKVMTPVerifyInput"},
        ),
    ),
)
