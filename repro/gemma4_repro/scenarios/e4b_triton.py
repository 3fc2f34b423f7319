"""The control for e4b-trtllm: under one load and one fault switch, trtllm_mha crashes and Triton attention does not.

Triton attention translates page ids through the pool that it reads at that moment, which SGLang does swap, and keeps no
state that the fault could spoil. So a crash that stays away with it is trtllm_mha's own. Pools are small because the
Triton interpreter needs seconds per step.
"""

from __future__ import annotations

from gemma4_repro.expect_comparison import SameOutputs
from gemma4_repro.expect_ending import Completes, Crashes
from gemma4_repro.expect_evidence import IdleClean
from gemma4_repro.scenario import Arm, Scenario
from gemma4_repro.scenarios.e4b_engine import E4B_TOYS, e4b_engine
from gemma4_repro.workloads import BRIEF_SWA_PRESSURE

_POOLS = {"max_total_tokens": 1024, "swa_full_tokens_ratio": 0.3, "max_running_requests": 4}
# The interpreter pays for each split of a row's keys, and so short rows need none.
_ONE_SPLIT = {"triton_attention_num_kv_splits": 1}
_FAULT = {"GEMMA4_TRIAGE_FAULTS": "swa-state-stale", "GEMMA4_TRIAGE_DEVICE_MODEL": "sm100"}
_UNFIXED = _FAULT | {"GEMMA4_TRIAGE_PATCHES": "default,-swa-state-swap"}
_FIXED = "trtllm-fixed"

SCENARIO = Scenario(
    id="e4b-triton",
    symptom="control: the load and fault that crash trtllm_mha leave Triton attention unharmed, tokens equal",
    hardware="CPU (host engine)",
    expected_s=50,
    toys=E4B_TOYS,
    arms=(
        Arm(
            id="trtllm-fault",
            title="trtllm_mha, fault injected, fix off",
            environment=_UNFIXED,
            engine_arguments=e4b_engine("trtllm_mha", **_POOLS),
            workload=BRIEF_SWA_PRESSURE,
            time_limit_s=60,
            expectations=(Crashes("IllegalAddress"),),
        ),
        Arm(
            id="triton",
            title="Triton attention, fault injected, fix off",
            environment=_UNFIXED,
            engine_arguments=e4b_engine("triton", **_POOLS, **_ONE_SPLIT),
            workload=BRIEF_SWA_PRESSURE,
            time_limit_s=240,
            expectations=(Completes(), SameOutputs(_FIXED), IdleClean()),
        ),
        Arm(
            id=_FIXED,
            title="trtllm_mha, fault still injected, fix on",
            environment=_FAULT | {"GEMMA4_TRIAGE_PATCHES": "default"},
            engine_arguments=e4b_engine("trtllm_mha", **_POOLS),
            workload=BRIEF_SWA_PRESSURE,
            time_limit_s=60,
            expectations=(Completes(), IdleClean()),
        ),
    ),
)
