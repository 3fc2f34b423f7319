"""The target or the draft lacks what speculative decoding asks of its model class."""

from __future__ import annotations

import re

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import of_death, of_failure, of_settings

_LACKS = pattern(
    r"'(\w+)' object has no attribute '(set_embed|set_embed_and_head|get_embed_and_head|get_input_embeddings|"
    r"set_eagle3_layers_to_capture|get_hot_token_id|hot_token_id|capture_aux_hidden_states)'"
)
_OF_A_DRAFT = ("set_embed", "set_embed_and_head", "get_hot_token_id", "hot_token_id")


_SHAPES = pattern(r"mat1 and mat2 shapes cannot be multiplied \((\d+x\d+) and (\d+x\d+)\)")
_DRAFTS = pattern(r"\w*(?:eagle|draft|mtp|nextn|medusa|dspark|dflash)\w*\.py:")


def _of_a_shape(death: Death) -> bool:
    """Say whether a draft's first step multiplied what its target hands over by weights of another width."""
    return _SHAPES.search(death.message) is not None and any(map(_DRAFTS.match, death.frames)) and death.usage is None


def _explains(death: Death) -> bool:
    lacks = death.type_name == "AttributeError" and _LACKS.search(death.message) is not None
    return lacks or _of_a_shape(death)


def _other_shape(facts: LogFacts, death: Death) -> Finding:
    shapes = _SHAPES.search(death.message)
    if shapes and _packed(facts, shapes):
        return _packed_shape(facts, death, shapes)
    said = f": {shapes[1]} meets weights of {shapes[2]}" if shapes else ""
    return Finding(
        rule=RULE.id,
        cause=f"The draft does not fit this target or this algorithm{said}. What the target hands over has another "
        "width than the draft was trained for.",
        confidence=Confidence.LIKELY,
        evidence=(
            *of_failure(facts, death),
            *of_settings(facts, "speculative_algorithm", "model_path", "speculative_draft_model_path"),
        ),
        ruled_out_if=("the same draft serves with another target of this width",),
        advice=(
            "a draft that was made for this target and this algorithm: EAGLE3 takes states of three layers, EAGLE of "
            "one; its config.json has to name the target's hidden_size",
            "serve without --speculative-algorithm meanwhile",
        ),
    )


_IN_ONE = (2, 8)  # values of 4 bits in a byte, and in a word of 32 bits
_FEWEST_OUTPUTS = 30_000  # a vocabulary has more, a layer between two others less
_FOUR_BITS = pattern(r"(?i)fp4|awq|gptq|int4|w4a|4-?bit|marlin")


def _packed(facts: LogFacts, shapes: re.Match[str]) -> bool:
    """Say whether these weights are a head of the vocabulary that lies packed, as 4-bit weights do."""
    (_, width), (stored, outputs) = (list(map(int, shape.split("x"))) for shape in shapes.groups())
    names = " ".join(facts.settings.get(name, "") for name in ("quantization", "model_path"))
    folds = any(width == stored * times for times in _IN_ONE)
    return folds and outputs >= _FEWEST_OUTPUTS and _FOUR_BITS.search(names) is not None


def _packed_shape(facts: LogFacts, death: Death, shapes: re.Match[str]) -> Finding:
    return Finding(
        rule=RULE.id,
        cause=f"The draft's code multiplies by the target's lm_head as if it were whole, and it lies packed, as 4-bit "
        f"weights do: {shapes[1]} meets weights of {shapes[2]}.",
        confidence=Confidence.LIKELY,
        evidence=(
            *of_failure(facts, death),
            *of_settings(facts, "quantization", "model_path", "speculative_draft_model_path"),
        ),
        ruled_out_if=("config.json lists lm_head among the layers that are not quantised (ignore, exclude_modules)",),
        advice=(
            "a copy of the target that leaves lm_head whole, or the target that is not quantised",
            "serve without --speculative-algorithm meanwhile; a later release, which unpacks it",
        ),
    )


def _tell(facts: LogFacts, death: Death) -> Finding:
    if _of_a_shape(death):
        return _other_shape(facts, death)
    asked = facts.settings
    lacks = _LACKS.search(death.message)
    model, attribute = (lacks[1], lacks[2]) if lacks else ("", "")
    target, draft = asked.get("model_path"), asked.get("speculative_draft_model_path", "None")
    quantised = quantised_on_load(facts)
    same = attribute in _OF_A_DRAFT and target is not None and draft in ("None", target)
    if quantised:
        cause = (
            f"--quantization {quantised} was asked for a checkpoint that is not quantised so, by its name: the "
            f"model was "
            f"loaded in a way that lacks {attribute}, which drafts need."
        )
        advice = (
            f"leave --quantization {quantised} out (and that of the draft), or serve a checkpoint that was made "
            f"with it",
            "serve without --speculative-algorithm meanwhile",
        )
    elif same:
        cause = (
            f"No draft model was given, so the target itself was loaded as its draft, and {model} is none: it lacks "
            f"{attribute}."
        )
        advice = (
            "give --speculative-draft-model-path a draft that was trained for this target, or serve without drafts",
        )
    else:
        which = "draft" if attribute in _OF_A_DRAFT else "target"
        cause = (
            f"The class of the {which} model, {model}, lacks {attribute}: this release serves it without drafts only."
        )
        advice = (
            "serve without --speculative-algorithm, or take a release that knows drafts for this model",
            "check that --speculative-draft-model-path is a draft for this algorithm and this target",
        )
    return Finding(
        rule=RULE.id,
        cause=cause,
        confidence=Confidence.LIKELY,
        evidence=(
            *of_failure(facts, death),
            *of_settings(facts, "speculative_algorithm", "model_path", "speculative_draft_model_path", "quantization"),
        ),
        ruled_out_if=("the same server without --speculative-algorithm dies alike",),
        advice=advice,
    )


_NAMED_SO = {
    "modelopt_fp4": ("fp4",),
    "modelopt": ("fp8", "fp4", "modelopt"),
    "modelopt_fp8": ("fp8",),
    "awq": ("awq",),
    "awq_marlin": ("awq",),
    "gptq": ("gptq",),
    "gptq_marlin": ("gptq",),
    "compressed-tensors": (
        *("w4a16", "w8a8", "fp8", "quantized", "compressed", "int4", "int8"),
        # What the name says is the method, and the form is compressed-tensors all the same.
        *("awq", "gptq", "fp4", "4bit", "8bit", "4-bit", "8-bit"),
    ),
}


def quantised_on_load(facts: LogFacts) -> str:
    """Return the method that was asked for, if the checkpoint's name says nothing of it; else ""."""
    method, path = facts.settings.get("quantization", "None"), facts.settings.get("model_path", "")
    words = _NAMED_SO.get(method)
    return method if words and path and not any(word in path.lower() for word in words) else ""


RULE = of_death("draft-model", "a model class lacks what drafts need", _explains, _tell)
