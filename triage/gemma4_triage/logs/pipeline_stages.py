"""A stage of a pipeline that lacks what another stage has: stages are left out, or cut elsewhere."""

from __future__ import annotations

import re

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
    # As SGLang and vLLM name it.
    asked = (facts.settings.get("pp_size", "1"), facts.arguments.get("pipeline_parallel_size", "1"))
    return any(stages not in ("1", "None") for stages in asked) or death.rank.startswith("PP")


_A_LAYER = re.compile(r"'?(?:[\w.]+\.)?(?:layers|blocks|h)\.\d+\b[\w.]*'?|\d+")


def of_another_stage(facts: LogFacts, death: Death) -> tuple[str, ...]:
    """Return what to do where a stage lacks a value (None) or a layer by its name: another stage has what it asks for.

    Of values the first stage lacks none; of layers each has its own alone.
    """
    lacks = "NoneType" in death.message and not death.rank.startswith("PP0")
    of_a_layer = death.type_name == "KeyError" and _A_LAYER.fullmatch(death.message.strip()) is not None
    if not is_staged(facts, death) or not (lacks or of_a_layer):
        return ()
    return (WITHOUT_STAGES, *((_SPLIT,) if facts.settings.get("pp_size", "1") != "1" else ()))
