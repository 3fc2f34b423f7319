"""The seed crash: MTP on trtllm_mha, and the draft reads the sliding-window pool with full-pool page ids."""

from __future__ import annotations

from gemma4_repro.expect_comparison import AcceptLengthFalls, DraftsDiffer, SameOutputs
from gemma4_repro.expect_ending import Completes, Crashes, TrapsBefore
from gemma4_repro.expect_evidence import IdleClean, WritesDump, WritesNoDump
from gemma4_repro.scenario import Arm, Scenario
from gemma4_repro.scenarios.e4b_engine import E4B_TOYS, e4b_engine
from gemma4_repro.staged_workload import StagedWorkload
from gemma4_repro.workloads import PROMPT_TOKENS, SWA_PRESSURE, Beginnings, Workload
from gemma4_runtime.releases import BASE, installed_or_base

_ENGINE = e4b_engine("trtllm_mha")
_FAULT = {"GEMMA4_TRIAGE_FAULTS": "swa-state-stale"}
_UNFIXED = _FAULT | {"GEMMA4_TRIAGE_PATCHES": "default,-swa-state-swap"}
# An arm takes a tenth of this on an idle machine; a machine that is busy with other things may need most of it.
_LIMIT_S = 240.0
_FIXED = "fixed"
# 0.5.23 hands out full pages beyond the sliding pool's end before the first draft; 0.5.13 begins with ones below it.
_FIRST_WRONG = "wrong_space" if installed_or_base() == BASE else "out_of_range"
# The first two stages draft nothing: one token per request is the prefill's. They leave prefixes in the cache, whose
# SWA pages the third stage takes while their full pages stay. So the two pools' page ids differ from its first draft
# step on, as they do in a server that has run for a while.
_ONE_TOKEN = {"prompt_count": 8, "shortest_new_tokens": 1, "longest_new_tokens": 1, "seed": 21}
_AGED_PRESSURE = StagedWorkload(
    (
        (Beginnings(prompt_tokens=49, **_ONE_TOKEN),),
        (Workload(prompt_tokens=PROMPT_TOKENS, **_ONE_TOKEN),),
        (SWA_PRESSURE,),
    )
)

SCENARIO = Scenario(
    id="e4b-trtllm",
    symptom="MTP on trtllm_mha: illegal memory access under load (sm100), or accept length falls silently (sm90)",
    hardware="CPU (host engine)",
    expected_s=40,
    toys=E4B_TOYS,
    arms=(
        Arm(
            id="fault",
            title="fault injected, fix off",
            environment=_UNFIXED | {"GEMMA4_TRIAGE_DEVICE_MODEL": "sm100"},
            engine_arguments=_ENGINE,
            workload=_AGED_PRESSURE,
            time_limit_s=_LIMIT_S,
            expectations=(Crashes("IllegalAddress"),),
        ),
        Arm(
            id="fault-silent",
            title="the same on a device that reads out of range without a fault",
            environment=_UNFIXED | {"GEMMA4_TRIAGE_DEVICE_MODEL": "sm90"},
            engine_arguments=_ENGINE,
            workload=_AGED_PRESSURE,
            time_limit_s=_LIMIT_S,
            expectations=(
                Completes(),
                AcceptLengthFalls(_FIXED, at_most_ratio=0.9),
                SameOutputs(_FIXED),
                DraftsDiffer(_FIXED, at_least_share=0.05),
            ),
        ),
        Arm(
            id="fault-probes",
            title="fault injected, fix off, probes on",
            environment=_UNFIXED | {"GEMMA4_TRIAGE_DEVICE_MODEL": "sm100", "SGLANG_TRTLLM_MHA_DEBUG": "1"},
            engine_arguments=_ENGINE,
            workload=_AGED_PRESSURE,
            time_limit_s=_LIMIT_S,
            expectations=(
                TrapsBefore("TrappedViolation", "IllegalAddress"),
                WritesDump("page-table-bounds", _FIRST_WRONG, table_space="full", buffer_space="swa"),
            ),
        ),
        Arm(
            id=_FIXED,
            title="fault still injected, fix on, probes on",
            environment=_FAULT
            | {
                "GEMMA4_TRIAGE_PATCHES": "default",
                "GEMMA4_TRIAGE_DEVICE_MODEL": "sm100",
                "SGLANG_TRTLLM_MHA_DEBUG": "1",
            },
            engine_arguments=_ENGINE,
            workload=_AGED_PRESSURE,
            time_limit_s=_LIMIT_S,
            expectations=(Completes(), WritesNoDump(), IdleClean()),
        ),
    ),
)
