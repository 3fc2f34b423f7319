"""The device's memory ran out, or weights left none for the pools."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.diagnose.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import Rule, of_memory

_KINDS = {
    "CUDA out of memory": "The device's memory ran out: pools and weights left too little for activations.",
    "Not enough memory. Please try to increase --mem-fraction-static": "Weights alone fill the share of memory that "
    "pools were to come from.",
}
_PLAN = "gemma4-triage pools --config CONFIG --gpu-mem 80GiB --weights 20GiB --workload 64x8000+1000"


def _kind(death: Death) -> str | None:
    return next((kind for kind in _KINDS if kind in death.message), None)


def _explains(death: Death) -> bool:
    return _kind(death) is not None


def _find(facts: LogFacts) -> Iterator[Finding]:
    found = next(((death, kind) for death in facts.deaths if (kind := _kind(death)) is not None), None)
    if found is None:
        return
    death, kind = found
    yield Finding(
        rule=RULE.id,
        cause=_KINDS[kind],
        confidence=Confidence.LIKELY,
        evidence=tuple(of_memory(facts, death)),
        ruled_out_if=("another process used the same device",) if kind.startswith("CUDA") else (),
        next_commands=(_PLAN,),
    )


RULE = Rule("out-of-memory", "memory of the device ran out", _find, _explains)
