"""A step found no slot in one of the two KV pools."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import cause_in, of_death, of_memory

_CAUSES = {
    "Decode out of memory": "A decode step found no slot in one of the pools, and there was nothing to retract.",
    "Prefill out of memory": "A prefill found no slots in one of the pools.",
}
_ROOMY = 0.8  # a fuller pool may have had no slot for a batch; an emptier one should have
_PLAN = "gemma4-triage pools --config CONFIG --gpu-mem 80GiB --weights 20GiB --workload 64x8000+1000"
_SERVE = "gemma4-triage serve --debug 1 -- --model-path MODEL"


def _explains(death: Death) -> bool:
    return bool(cause_in(death, _CAUSES))


def _tell(facts: LogFacts, death: Death) -> Finding:
    usage = death.usage
    roomy = usage is not None and max(usage.full or 0, usage.swa or 0) < _ROOMY
    return Finding(
        rule=RULE.id,
        cause="A step found no slot although the pools had room: pages are lost, or one pool refused what the other "
        "gave."
        if roomy
        else cause_in(death, _CAUSES),
        confidence=Confidence.POSSIBLE if roomy else Confidence.LIKELY,
        evidence=tuple(of_memory(facts, death)),
        next_commands=(_SERVE,) if roomy else (_PLAN,),
        upstream=("SGLang 7909",) if roomy else (),
    )


RULE = of_death("no-slot", "a step found no slot in a KV pool", _explains, _tell, alarms=("no-memory",))
