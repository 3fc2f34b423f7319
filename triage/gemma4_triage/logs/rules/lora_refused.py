"""A LoRA adapter does not fit the server: its rank, its modules, its names, or it is not there."""

from __future__ import annotations

import re

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import of_death, of_failure, of_settings

_CAUSES = (
    (
        re.compile(
            r"(?i)rank.{0,80}(?:incompatible|exceed|larger|greater|max[-_]lora[-_]rank)|max[-_]lora[-_]rank.{0,80}(?:rank|adapter)"
        ),
        "The adapter's rank or its target modules are not among those that the server was started for.",
        "--max-lora-rank at least r of adapter_config.json, and --lora-target-modules all of its target_modules",
    ),
    (
        re.compile(
            r"(?i)LoRA (?:adapter|name)?.{0,60}(?:not found|not loaded|does not exist|never been loaded|"
            r"is not registered)"
        ),
        "A request names an adapter that is not loaded.",
        "GET /v1/models lists the names; load it with --lora-paths NAME=PATH or POST /load_lora_adapter",
    ),
    (
        re.compile(
            r"(?i)lora.{0,80}(?:missing weight|weight name|unexpected key|target modules?)|(?:missing weight|"
            r"KeyError).{0,120}lora_[AB]"
        ),
        "Names in the adapter are not those of SGLang's modules.",
        "compare the names in adapter_model.safetensors with the model; merge the adapter if they differ",
    ),
)


def _found(death: Death) -> tuple[str, str] | None:
    said = f"{death.type_name}: {death.message}"
    return next(((cause, advice) for words, cause, advice in _CAUSES if words.search(said)), None)


def _explains(death: Death) -> bool:
    return _found(death) is not None


def _tell(facts: LogFacts, death: Death) -> Finding:
    cause, advice = _found(death) or ("", "")
    return Finding(
        rule=RULE.id,
        cause=cause,
        confidence=Confidence.LIKELY,
        evidence=(*of_failure(facts, death), *of_settings(facts, "max_lora_rank")),
        ruled_out_if=("the same adapter loads with PEFT and its names are those of the server's modules",),
        advice=(advice, "once without the adapter: the base model has to start"),
    )


RULE = of_death("lora-refused", "a LoRA adapter does not fit the server", _explains, _tell)
