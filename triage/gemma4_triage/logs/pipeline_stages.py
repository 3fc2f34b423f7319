"""A stage of a pipeline that lacks what another stage has: stages are left out, or cut elsewhere."""

from __future__ import annotations

from gemma4_triage.logs.facts import Death, LogFacts

WITHOUT_STAGES = (
    "once with --pp-size 1 (--tp for the other GPUs): code that knows no stages asks for what another one has"
)
_SPLIT = (
    "SGLANG_PP_LAYER_PARTITION=… of another split: a stage that begins with a layer which takes what an earlier layer "
    "made (indices that layers share, keys that are kept once) has none of it; then a later release, which hands it on"
)


def is_staged(facts: LogFacts, death: Death) -> bool:
    """Say whether the server has its layers in several stages."""
    return facts.settings.get("pp_size", "1") not in ("1", "None") or death.rank.startswith("PP")


def of_another_stage(facts: LogFacts, death: Death) -> tuple[str, ...]:
    """Return what to do where a stage behind the first lacks a value (None): another stage has what it asks for."""
    if not is_staged(facts, death) or "NoneType" not in death.message or death.rank.startswith("PP0"):
        return ()
    return (WITHOUT_STAGES, *((_SPLIT,) if facts.settings.get("pp_size", "1") != "1" else ()))
