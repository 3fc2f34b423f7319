"""A draft on a hybrid attention backend looks a target's layer up in its own dummy pool."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import at, of_death, of_settings, on_rank, over

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


def _find(facts: LogFacts) -> Iterator[Finding]:
    stages = facts.settings.get("pp_size", "1")
    without = bool(facts.settings) and facts.settings.get("speculative_algorithm", "None") == "None"
    death = next(filter(_explains, facts.failures), None)
    if death is not None and (death.rank.startswith("PP") or stages not in ("1", "None")):
        yield _of_a_stage(facts, death, stages)
    elif not without:
        yield from _OF_DEATH.find(facts)


def _of_a_stage(facts: LogFacts, death: Death, stages: str) -> Finding:
    return Finding(
        rule=_OF_DEATH.id,
        cause=f"Code of this release asks a pipeline stage{on_rank(death.rank)} for the KV buffer of a layer that "
        f"another "
        "stage has, such as the first.",
        confidence=Confidence.LIKELY,
        evidence=(
            at(facts, death.place, f"{death.type_name}: {death.message}", f"raised in {death.frame}"),
            *([over(facts, "server_args", stages, "pp_size")] if stages != "1" else []),
            *of_settings(facts, "attention_backend"),
        ),
        ruled_out_if=("it dies alike with --pp-size 1",),
        advice=(
            "--pp-size 1, with --tp for the other GPUs, or another --attention-backend: not every one knows stages",
            "a later release",
        ),
    )


_OF_DEATH = of_death("hybrid-draft-pool", "a KV buffer is asked of a pool that has not got it", _explains, _tell)
RULE = replace(_OF_DEATH, find=_find)
