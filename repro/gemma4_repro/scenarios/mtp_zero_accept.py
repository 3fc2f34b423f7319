"""A round of MTP in which every request finishes, and a prefill that comes at once: the scheduler dies of merge_batch.

Nothing was accepted for anybody to go on with, so the worker has to leave an empty draft input on the batch. SGLang
does since 26859; where it does not, the batch keeps the verify input, which cannot be merged with the next prefill.

It was first seen with pictures in the prompts. The last arms' prompts hold them; the first arms' are text alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
_DIES = (Crashes("AttributeError"),)
_CLEAN = (Completes(), WritesNoDump(), IdleClean())


def _as(reference: str) -> tuple[Expectation, ...]:
    return (Completes(), SameOutputs(reference), WritesNoDump(), IdleClean())


def _arm(
    name: str,
    title: str,
    environment: Mapping[str, str],
    expectations: tuple[Expectation, ...],
    workload: Workload | None = _LOAD,
    engine: Mapping[str, Any] = _ENGINE,
) -> Arm:
    return Arm(name, title, environment, engine, workload, _LIMIT_S, expectations, one_by_one=True)


_SEEING = "prompts with no picture, one and three"

SCENARIO = Scenario(
    absent="0.5.14, the V1 worker, whose batches it breaks, is gone",
    id="mtp-zero-accept",
    symptom="MTP: 'FrozenKVMTPVerifyInput' object has no attribute 'merge_batch' after a round that ends all requests",
    hardware="CPU (host engine)",
    expected_s=35,
    toys=E4B_TOYS,
    arms=(
        _arm("fault", "no empty draft input is left behind, fix off", _UNGUARDED | _FAULT, _DIES),
        _arm(
            "fault-probes",
            "the same, probes on",
            _UNGUARDED | _FAULT | _PROBES,
            (
                TrapsBefore("TrappedViolation", "AttributeError"),
                WritesDump("batch-shapes", "unusable_spec_info"),
            ),
        ),
        _arm("fixed", "still none is left behind, fix on, probes on", _GUARDED | _FAULT | _PROBES, _as(_RELEASE)),
        _arm(_RELEASE, "the release's own empty draft input, fix off, probes on", _UNGUARDED | _PROBES, _CLEAN),
        _arm(
            "spec-v2",
            "MTP with overlap scheduling, probes on",
            _GUARDED | _PROBES | _V2,
            _as(_RELEASE),
            engine=_OVERLAPPED,
        ),
        _arm("pictures-fault", f"{_SEEING}: none is left behind, fix off", _UNGUARDED | _FAULT, _DIES, None),
        _arm(
            "pictures-fixed",
            f"{_SEEING}, still none is left behind, fix on, probes on",
            _GUARDED | _FAULT | _PROBES,
            _as(_PICTURES_RELEASE),
            None,
        ),
        _arm(
            _PICTURES_RELEASE,
            f"{_SEEING}, the release's own empty draft input, fix off, probes on",
            _UNGUARDED | _PROBES,
            _CLEAN,
            None,
        ),
        _arm(
            "pictures-spec-v2",
            f"{_SEEING}, MTP with overlap scheduling, probes on",
            _GUARDED | _PROBES | _V2,
            _as(_PICTURES_RELEASE),
            None,
            _OVERLAPPED,
        ),
    ),
)
