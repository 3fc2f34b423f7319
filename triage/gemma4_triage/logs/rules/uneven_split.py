"""The model cannot be split over that many ranks: a dimension is no multiple of theirs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import of_death, of_failure, of_settings

_WORDS = pattern(r"(?i)(?:must be|is not|not|should be) (?:evenly )?divisible (?:by|with)|is not a multiple of")
_OF_A_SPLIT = pattern(
    r"(?i)tensor|parallel|\btp|head|partition|block|shard|size|^AssertionError: \d+ is not divisible by \d+"
)
_RESHAPED = pattern(r"shape '\[([\d, -]+)\]' is invalid for input of size (\d+)")
_QUANTISED = pattern(r"(?i)block_[nk]|group_size|quant|weight_block")


def _ranks_in(death: Death) -> int:
    """Return into how many parts a tensor was split that is reshaped as if it were whole; 0 if it was not."""
    found = _RESHAPED.search(death.message)
    if found is None:
        return 0
    sizes = [int(size) for size in found[1].split(",")]
    whole, part = math.prod(sizes), int(found[2])
    return whole // part if whole > part > 0 and whole % part == 0 else 0


def _find(facts: LogFacts) -> Iterator[Finding]:
    # An assertion without words is about ranks only where there are several.
    one = facts.settings.get("tp_size") == "1"
    if not one or any(_of_a_dimension(death) and death.message for death in facts.failures):
        yield from _OF_DEATH.find(facts)
    for death in facts.deaths:
        ranks = _ranks_in(death)
        if ranks > 1 and facts.settings.get("tp_size") == str(ranks):
            yield _of_a_part(facts, death, ranks)
            return


def _of_a_part(facts: LogFacts, death: Death, ranks: int) -> Finding:
    return Finding(
        rule=RULE.id,
        cause=f"This release's code of the model takes a part of a tensor for the whole: it has one number in {ranks}, "
        f"and --tp is {ranks}. The model runs on one GPU per replica only.",
        confidence=Confidence.LIKELY,
        evidence=(*of_failure(facts, death), *of_settings(facts, "tp_size", "model_path")),
        ruled_out_if=("it dies alike with --tp 1",),
        advice=(
            "--tp 1, with --dp for the other GPUs; or a release whose code of this model knows tensor parallelism",
        ),
    )


def _explains(death: Death) -> bool:
    if _ranks_in(death) > 1:
        return True
    said = f"{death.type_name}: {death.message}"
    return (bool(_WORDS.search(said) and _OF_A_SPLIT.search(said)) or _too_many(death)) and death.usage is None


_MORE_THAN = pattern(r"(?i)(?:tensor|expert) parallel size \d+ is greater than")
_MAKES = pattern(r"\w+\.py:\d+ __init__$")


def _too_many(death: Death) -> bool:
    """Say whether more ranks were asked for than a model has parts; a model's class asserts that without a word."""
    if _MORE_THAN.search(death.message):
        return True
    silent = death.type_name == "AssertionError" and not death.message
    return silent and death.path.startswith("models/") and _MAKES.match(death.frame) is not None


_IN_BF16 = pattern(r"(?i)\b(?:bf16|bfloat16|fp16)\b|(?:bf16|bfloat16)")
_NOT_QUANTISED = (
    "if these weights are in BF16, as the model's path says: take quantization_config out of its config.json. Who "
    "converts an FP8 checkpoint copies that file along, and the server then cuts blocks that are not there"
)


def _tell(facts: LogFacts, death: Death) -> Finding:
    quantised = _QUANTISED.search(death.message) is not None
    experts = "experts" in death.message
    what = "a block of its quantised weights" if quantised else "its experts" if experts else "its heads or its width"
    return Finding(
        rule=RULE.id,
        cause=f"The model cannot be split over that many ranks: {what} cannot be divided by them.",
        confidence=Confidence.LIKELY if death.message else Confidence.POSSIBLE,
        evidence=(*of_failure(facts, death), *of_settings(facts, "tp_size", "dp_size", "quantization")),
        ruled_out_if=("it dies alike with --tp 1",),
        advice=(
            *((_NOT_QUANTISED,) if quantised and _IN_BF16.search(facts.settings.get("model_path", "")) else ()),
            *((_WHOLE_BLOCKS,) if quantised else ()),
            "a smaller --tp that divides the number in the line",
            "--dp or --enable-dp-attention uses the other GPUs",
        ),
    )


_WHOLE_BLOCKS = (
    "a smaller --tp (half of it), so that each rank has whole blocks; or experts kept whole, each on one rank: --ep of "
    "the same number"
)


def _of_a_dimension(death: Death) -> bool:
    return _ranks_in(death) < 2 and _explains(death)


_OF_DEATH = of_death("uneven-split", "the model cannot be split over that many ranks", _of_a_dimension, _tell)
RULE = replace(_OF_DEATH, find=_find, explains=_explains)
