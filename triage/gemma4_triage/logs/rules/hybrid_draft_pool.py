"""A draft on a hybrid attention backend looks a target's layer up in its own dummy pool."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import at, of_death, over

_POOL_FILES = ("memory_pool.py", "swa_memory_pool.py")


def _explains(death: Death) -> bool:
    file = death.frame.split(":")[0]
    return death.type_name == "IndexError" and "list index out of range" in death.message and file in _POOL_FILES


def _tell(facts: LogFacts, death: Death) -> Finding:
    backends = {facts.settings.get(f"{name}_attention_backend", "None") for name in ("prefill", "decode")}
    hybrid = len(backends) > 1
    evidence = [at(facts, death.place, f"{death.type_name}: {death.message}", f"raised in {death.frame}")]
    if hybrid:
        names = ", ".join(sorted(backends))
        evidence.append(over(facts, "server_args", names, "prefill and decode attention backends"))
    return Finding(
        rule=RULE.id,
        cause="The draft's attention backend still held its own small pool: a pool swap changed the wrapper only.",
        confidence=Confidence.CERTAIN if hybrid else Confidence.LIKELY,
        evidence=tuple(evidence),
        ruled_out_if=("prefill and decode use one attention backend", "the server ran without speculative decoding"),
        next_commands=("gemma4-triage repro corpus --only hybrid-pool-unswapped", "gemma4-triage patches"),
        fix="swa-state-swap",
        upstream=("SGLang 26966",),
    )


RULE = of_death("hybrid-draft-pool", "a draft on a hybrid backend indexes its dummy pool", _explains, _tell)
