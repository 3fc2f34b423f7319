"""The published leak of MTP with overlap scheduling: every request that ends leaves tokens behind.

A V1 worker that is wrapped for spec v2 ends requests inside the forward; the scheduler takes them for released and
never releases them. Here a page is a token and a draft has 8. A request of 7 prompt tokens keeps 24: the last of its
prompt (the prefix cache holds pairs of tokens, one less), the 7 by which its answer had grown when its last decode was
prepared, and 2 * 8 that are allocated ahead. The ledger knows them by who handed them out: a prefill 1, decodes 23.
"""

from __future__ import annotations

from gemma4_repro.expect_comparison import SameOutputs
from gemma4_repro.expect_ending import Completes, Crashes, TrapsBefore
from gemma4_repro.expect_evidence import IdleClean, WritesNoDump
from gemma4_repro.expect_leak import LeakNamed, LeakReported
from gemma4_repro.scenario import Arm, Scenario
from gemma4_repro.scenarios.e4b_engine import E4B_TOYS, e4b_engine
from gemma4_repro.workloads import MixedWorkload, Workload

_V2 = {"GEMMA4_TRIAGE_PATCHES": "default", "SGLANG_FROZEN_KV_MTP_V2": "1"}
_FAULT = _V2 | {"GEMMA4_TRIAGE_FAULTS": "finish-inside-forward"}
_AUDIT = {"GEMMA4_TRIAGE_LEAK": "raise"}
_OVERLAP = {"disable_overlap_schedule": False}
_AS_PUBLISHED = e4b_engine(
    "triton",
    page_size=1,
    speculative_num_steps=7,
    speculative_num_draft_tokens=8,
    max_total_tokens=512,
    max_running_requests=2,
    **_OVERLAP,
)
# The toy's first decode of this prompt brings 6 tokens, its second 8. The request ends in its third, since that one's
# forward does not know the second's tokens yet; before it, room was made for the 6 and for the next bonus token.
_ONE_REQUEST = Workload(prompt_count=1, prompt_tokens=7, shortest_new_tokens=12, longest_new_tokens=12, seed=41)
_MIXED = MixedWorkload(prompt_count=12, prompt_tokens=80, shortest_new_tokens=1, longest_new_tokens=40)
_LEFT = 24
_LIMIT_S = 300.0
_V1 = "v1"
_CLEAN = (Completes(), SameOutputs(_V1), WritesNoDump(), IdleClean())

SCENARIO = Scenario(
    absent="0.5.14, it compares with the V1 worker, which is gone, and spec v2 is SGLang's own",
    id="mtp-v2-leak",
    symptom="MTP with overlap scheduling: pool memory leak detected, 24 tokens for each request that ends",
    hardware="CPU (host engine)",
    expected_s=100,
    toys=E4B_TOYS,
    arms=(
        Arm(
            id="fault",
            title="requests end inside the forward, as V1 ends them",
            environment=_FAULT,
            engine_arguments=_AS_PUBLISHED,
            workload=_ONE_REQUEST,
            time_limit_s=_LIMIT_S,
            expectations=(Crashes("ValueError"), LeakReported(_LEFT)),
        ),
        Arm(
            id="fault-audit",
            title="the same, leak audit on",
            environment=_FAULT | _AUDIT,
            engine_arguments=_AS_PUBLISHED,
            workload=_ONE_REQUEST,
            time_limit_s=_LIMIT_S,
            expectations=(
                TrapsBefore("TrappedViolation", "ValueError"),
                LeakNamed({"alloc_for_extend": 1, "spec_v2_decode": _LEFT - 1}),
            ),
        ),
        Arm(
            id="overlap-published",
            title="the same load, nothing injected, leak audit on",
            environment=_V2 | _AUDIT,
            engine_arguments=_AS_PUBLISHED,
            workload=_ONE_REQUEST,
            time_limit_s=_LIMIT_S,
            expectations=(Completes(), WritesNoDump(), IdleClean()),
        ),
        Arm(
            id=_V1,
            title="MTP without spec v2, a mixed load",
            environment={"GEMMA4_TRIAGE_PATCHES": "default"} | _AUDIT,
            engine_arguments=e4b_engine("trtllm_mha"),
            workload=_MIXED,
            time_limit_s=_LIMIT_S,
            expectations=(Completes(), WritesNoDump(), IdleClean()),
        ),
        Arm(
            id="sync",
            title="spec v2 without overlap, the same load",
            environment=_V2 | _AUDIT,
            engine_arguments=e4b_engine("trtllm_mha"),
            workload=_MIXED,
            time_limit_s=_LIMIT_S,
            expectations=_CLEAN,
        ),
        Arm(
            id="overlap",
            title="spec v2 with overlap, the same load",
            environment=_V2 | _AUDIT,
            engine_arguments=e4b_engine("trtllm_mha", **_OVERLAP),
            workload=_MIXED,
            time_limit_s=_LIMIT_S,
            expectations=_CLEAN,
        ),
    ),
)
