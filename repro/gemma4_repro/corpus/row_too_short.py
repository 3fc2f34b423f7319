"""Rows that lack room for what is allocated ahead."""

from gemma4_repro.detection.case import FaultCase, Origin
from gemma4_repro.detection.finding import Finding
from gemma4_repro.staged_workload import at_once
from gemma4_repro.workloads import OpenWorkload

CASE = FaultCase(
    id="row-too-short",
    title="spec v2 allocates more slots ahead than a request's row of req_to_token has room for",
    origin=Origin(
        "SGLang 33579", "slots leak as requests reach the end of their context, and a neighbour's row is overwritten"
    ),
    injected="nothing: the release has it. The fix is off",
    along=("mtp-v2",),
    without=("spec-v2-row-width",),
    # With fewer than 8 draft tokens a step rows have room enough.
    engine={
        "disable_overlap_schedule": False,
        "context_length": 96,
        "speculative_num_steps": 7,
        "speculative_num_draft_tokens": 8,
    },
    workload=at_once(OpenWorkload(prompt_count=2, prompt_tokens=60)),
    findings=(
        Finding(
            "batch-shapes",
            "batch-shapes",
            "row_overflow",
            {"site": "EagleDraftInputV2Mixin.prepare_for_decode"},
        ),
    ),
)
