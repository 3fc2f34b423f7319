"""A round of MTP in which every request finishes, and a prefill that comes at once: the scheduler dies of merge_batch.

Nothing was accepted for anybody to go on with, so the worker has to leave an empty draft input on the batch. SGLang
does since 26859; where it does not, the batch keeps the verify input, which cannot be merged with the next prefill.

It was first seen where prompts hold pictures: reading them takes long, so requests come one after the other, and each
finds a batch that has just finished. The last arms are that, the first ones the same without pictures.
"""

from __future__ import annotations

from gemma4_repro.expect_comparison import SameOutputs
from gemma4_repro.expect_ending import Completes, Crashes, TrapsBefore
from gemma4_repro.expect_evidence import IdleClean, WritesDump, WritesNoDump
from gemma4_repro.expectation import Expectation
from gemma4_repro.scenario import Arm, Scenario
from gemma4_repro.scenarios.e4b_engine import E4B_TOYS, e4b_engine
from gemma4_repro.workloads import Workload

_ENGINE = e4b_engine("trtllm_mha")
_OVERLAPPED = e4b_engine("trtllm_mha", disable_overlap_schedule=False)
_LOAD = Workload(prompt_count=4, prompt_tokens=40, shortest_new_tokens=12, longest_new_tokens=12, seed=6)
_FAULT = {"GEMMA4_TRIAGE_FAULTS": "unmergeable-spec-info"}
_UNGUARDED = {"GEMMA4_TRIAGE_PATCHES": "default,-spec-info-guards"}
_GUARDED = {"GEMMA4_TRIAGE_PATCHES": "default"}
_V2 = {"SGLANG_FROZEN_KV_MTP_V2": "1"}
_PROBES = {"SGLANG_TRTLLM_MHA_DEBUG": "1"}
_LIMIT_S = 300.0
_RELEASE = "release"
_PICTURES_RELEASE = "pictures-release"


def _as(reference: str) -> tuple[Expectation, ...]:
    return (Completes(), SameOutputs(reference), WritesNoDump(), IdleClean())


SCENARIO = Scenario(
    id="mtp-zero-accept",
    symptom="MTP: 'FrozenKVMTPVerifyInput' object has no attribute 'merge_batch' after a round that ends all requests",
    hardware="CPU (host engine)",
    expected_s=100,
    toys=E4B_TOYS,
    arms=(
        Arm(
            id="fault",
            title="no empty draft input is left behind, fix off",
            environment=_UNGUARDED | _FAULT,
            engine_arguments=_ENGINE,
            workload=_LOAD,
            time_limit_s=_LIMIT_S,
            expectations=(Crashes("AttributeError"),),
            one_by_one=True,
        ),
        Arm(
            id="fault-probes",
            title="the same, probes on",
            environment=_UNGUARDED | _FAULT | _PROBES,
            engine_arguments=_ENGINE,
            workload=_LOAD,
            time_limit_s=_LIMIT_S,
            expectations=(
                TrapsBefore("TrappedViolation", "AttributeError"),
                WritesDump("batch-shapes", "unusable_spec_info"),
            ),
            one_by_one=True,
        ),
        Arm(
            id="fixed",
            title="still none is left behind, fix on, probes on",
            environment=_GUARDED | _FAULT | _PROBES,
            engine_arguments=_ENGINE,
            workload=_LOAD,
            time_limit_s=_LIMIT_S,
            expectations=_as(_RELEASE),
            one_by_one=True,
        ),
        Arm(
            id=_RELEASE,
            title="the release's own empty draft input, fix off, probes on",
            environment=_UNGUARDED | _PROBES,
            engine_arguments=_ENGINE,
            workload=_LOAD,
            time_limit_s=_LIMIT_S,
            expectations=(Completes(), WritesNoDump(), IdleClean()),
            one_by_one=True,
        ),
        Arm(
            id="spec-v2",
            title="MTP with overlap scheduling, probes on",
            environment=_GUARDED | _PROBES | _V2,
            engine_arguments=_OVERLAPPED,
            workload=_LOAD,
            time_limit_s=_LIMIT_S,
            expectations=_as(_RELEASE),
            one_by_one=True,
        ),
        Arm(
            id="pictures-fault",
            title="prompts with no picture, one and three: none is left behind, fix off",
            environment=_UNGUARDED | _FAULT,
            engine_arguments=_ENGINE,
            workload=None,
            time_limit_s=_LIMIT_S,
            expectations=(Crashes("AttributeError"),),
            one_by_one=True,
        ),
        Arm(
            id="pictures-fixed",
            title="the same prompts, fix on, probes on",
            environment=_GUARDED | _FAULT | _PROBES,
            engine_arguments=_ENGINE,
            workload=None,
            time_limit_s=_LIMIT_S,
            expectations=_as(_PICTURES_RELEASE),
            one_by_one=True,
        ),
        Arm(
            id=_PICTURES_RELEASE,
            title="the same prompts, the release's own empty draft input, fix off, probes on",
            environment=_UNGUARDED | _PROBES,
            engine_arguments=_ENGINE,
            workload=None,
            time_limit_s=_LIMIT_S,
            expectations=(Completes(), WritesNoDump(), IdleClean()),
            one_by_one=True,
        ),
        Arm(
            id="pictures-spec-v2",
            title="the same prompts, MTP with overlap scheduling, probes on",
            environment=_GUARDED | _PROBES | _V2,
            engine_arguments=_OVERLAPPED,
            workload=None,
            time_limit_s=_LIMIT_S,
            expectations=_as(_PICTURES_RELEASE),
            one_by_one=True,
        ),
    ),
)
