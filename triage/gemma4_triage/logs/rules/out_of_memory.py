"""The device's memory ran out, or weights left none for the pools."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import cause_in, of_death, of_memory

_ON_THE_DEVICE = "CUDA out of memory"
_CAUSES = {
    _ON_THE_DEVICE: "The device's memory ran out: pools and weights left too little for activations.",
    "Not enough memory. Please try to increase --mem-fraction-static": "Weights alone fill the share of memory that "
    "pools were to come from.",
}
_PLAN = "gemma4-triage pools --config CONFIG --gpu-mem 80GiB --weights 20GiB --workload 64x8000+1000"


def _explains(death: Death) -> bool:
    return bool(cause_in(death, _CAUSES))


def _tell(facts: LogFacts, death: Death) -> Finding:
    return Finding(
        rule=RULE.id,
        cause=cause_in(death, _CAUSES),
        confidence=Confidence.LIKELY,
        evidence=tuple(of_memory(facts, death)),
        ruled_out_if=("another process used the same device",) if _ON_THE_DEVICE in death.message else (),
        next_commands=(_PLAN,),
    )


RULE = of_death("out-of-memory", "memory of the device ran out", _explains, _tell, alarms=("no-memory",))
