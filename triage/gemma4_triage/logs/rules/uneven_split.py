"""The model cannot be split over that many ranks: a dimension is no multiple of theirs."""

from __future__ import annotations

import re

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import of_death, of_failure, of_settings

_WORDS = re.compile(r"(?i)(?:must be|is not|not|should be) (?:evenly )?divisible (?:by|with)|is not a multiple of")
_OF_A_SPLIT = re.compile(
    r"(?i)tensor|parallel|\btp|head|partition|block|shard|size|^AssertionError: \d+ is not divisible by \d+"
)
_QUANTISED = re.compile(r"(?i)block_[nk]|group_size|quant|weight_block")


def _explains(death: Death) -> bool:
    said = f"{death.type_name}: {death.message}"
    return bool(_WORDS.search(said) and _OF_A_SPLIT.search(said)) and death.usage is None


def _tell(facts: LogFacts, death: Death) -> Finding:
    quantised = _QUANTISED.search(death.message) is not None
    what = "a block of its quantised weights" if quantised else "its heads or its width"
    return Finding(
        rule=RULE.id,
        cause=f"The model cannot be split over that many ranks: {what} cannot be divided by them.",
        confidence=Confidence.LIKELY,
        evidence=(*of_failure(facts, death), *of_settings(facts, "tp_size", "dp_size", "quantization")),
        advice=(
            "a smaller --tp that divides the number in the line; --dp or --enable-dp-attention uses the other GPUs",
            *(("for MoE weights: --ep keeps experts whole",) if quantised else ()),
        ),
    )


RULE = of_death("uneven-split", "the model cannot be split over that many ranks", _explains, _tell)
