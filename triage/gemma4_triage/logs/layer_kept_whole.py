"""A traceback that is cut off, behind the line by which the scale of a quantised layer had no place in the model."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import at, of_settings
from gemma4_triage.logs.tracebacks import TORN

_SCALE = pattern(
    r"(\S+)\.(?:weight_scale\w*|weight_packed|qweight|qzeros|scales|w\w*_global_scale) not found in params_dict"
)
_DRAFTS = pattern(r"\w*(?:eagle|mtp|nextn|draft|standalone)\w*\.py:|.* \w*draft\w*$")
_SOON = 200  # lines


def before_a_torn_end(facts: LogFacts, rule: str) -> Finding | None:
    """Return that a layer which the checkpoint has quantised was kept whole, where a start died right behind it.

    Args:
        facts: the log.
        rule: whose finding it is.
    """
    said = facts.remarks.get("left_out")
    found = _SCALE.search(said.text) if said is not None else None
    if said is None or found is None or facts.served:
        return None
    torn = (one for one in facts.deaths if one.message == TORN and 0 < one.place.line - said.place.line <= _SOON)
    death = next(torn, None)
    if death is None:
        return None
    drafts = any(map(_DRAFTS.match, death.frames))
    return Finding(
        rule=rule,
        cause=f"The log is cut off before what {'the draft' if drafts else 'the model'} died of as it was set up. Just "
        f"before it the scale of {found[1]} had no place: the checkpoint has that layer quantised, and the class of "
        "this release keeps it whole, so that its packed weight is of another size.",
        confidence=Confidence.POSSIBLE,
        evidence=(
            at(facts, said.place, said.text, "what had no place"),
            at(facts, death.place, death.message, f"in {death.frame}" if death.frame else "where it ends"),
            *of_settings(facts, "quantization", "speculative_algorithm"),
        ),
        ruled_out_if=("the lines behind the cut name another exception than one of sizes, names or shapes",),
        advice=(
            f"a later release of SGLang, whose class takes {found[1]} quantised"
            f"{' (of GLM-5 in MXFP4: SGLang 23219)' if drafts and 'eh_proj' in found[1] else ''}",
            *(("until then without --speculative-algorithm, which the model does not need",) if drafts else ()),
            f"or a copy that leaves {found[1]} in bfloat16, such as the publisher's own",
        ),
    )
