"""The GPU or its driver reported a fault of its own."""

from __future__ import annotations

import re

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import of_death, of_failure

_XID = re.compile(r"Xid(?: \([^)]*\))?: ?(\d+)")
_HARDWARE = re.compile(
    r"(?i)fallen off the bus|uncorrectable ECC|ECC error|cudaErrorDevicesUnavailable|system not yet initialized|"
    r"CUDA error: (?:unknown error|hardware|device not ready|all CUDA-capable devices are busy)|GPU is lost"
)
# NVIDIA's list of Xid errors: faults of the program that ran.
_PROGRAM = {"13", "31", "32", "43", "45", "69"}


def _explains(death: Death) -> bool:
    return bool(_XID.search(death.message) or _HARDWARE.search(death.message))


def _tell(facts: LogFacts, death: Death) -> Finding:
    xid = _XID.search(death.message)
    if xid is not None and xid[1] in _PROGRAM:
        cause = f"The driver reports Xid {xid[1]}: a kernel of a process did something that the GPU refused."
        advice = ("the exception of the server at that time says more; CUDA_LAUNCH_BLOCKING=1 names the kernel",)
    else:
        cause = "The GPU or its driver failed" + (f" (Xid {xid[1]})" if xid else "") + ", and not the server."
        advice = (
            "dmesg -T | grep -i xid and nvidia-smi -q: which GPU; look the number up in NVIDIA's list of Xid errors",
            "take that GPU out (CUDA_VISIBLE_DEVICES), reset it or the host; dcgmi diag tests it",
        )
    return Finding(
        rule=RULE.id,
        cause=cause,
        confidence=Confidence.LIKELY,
        evidence=tuple(of_failure(facts, death, "what was reported")),
        ruled_out_if=("dmesg shows no Xid at that time, and the same GPU runs other work",),
        advice=advice,
    )


RULE = of_death("device-fault", "the GPU or its driver failed", _explains, _tell, alarms=("device",))
