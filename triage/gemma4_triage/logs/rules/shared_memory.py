"""Shared memory of the container is too small: a bus error, or no space below /dev/shm."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import of_death, of_failure, says

_WORDS = pattern(
    r"(?i)insufficient shared memory|out of shared memory|shared memory \(shm\)|/dev/shm.{0,80}(?:No space|"
    r"failed|Error)|"
    r"(?:No space left on device|Error while creating shared memory).{0,80}shm"
)


def _explains(death: Death) -> bool:
    return says(_WORDS)(death) and death.type_name != "OutOfResources"


def _tell(facts: LogFacts, death: Death) -> Finding:
    return Finding(
        rule=RULE.id,
        cause="The shared memory of the container (/dev/shm) is too small for what its processes exchange.",
        confidence=Confidence.LIKELY,
        evidence=tuple(of_failure(facts, death)),
        ruled_out_if=("df -h /dev/shm shows room while the server runs",),
        advice=(
            "docker: --shm-size 32g or --ipc host; Kubernetes: an emptyDir of medium Memory at /dev/shm",
            "ls /dev/shm: what earlier servers left there counts too",
        ),
    )


RULE = of_death(
    "shared-memory", "shared memory of the container is too small", _explains, _tell, ("no-memory", "signalled", "nccl")
)
