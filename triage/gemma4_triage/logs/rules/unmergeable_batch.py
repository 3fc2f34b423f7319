"""A verify round in which all requests finished left its own input on the batch, which cannot be merged."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import at, of_death

_MESSAGE = pattern(r"'\w+VerifyInput' object has no attribute '(?:merge_batch|filter_batch)'")


def _explains(death: Death) -> bool:
    return death.type_name == "AttributeError" and bool(_MESSAGE.search(death.message))


def _tell(facts: LogFacts, death: Death) -> Finding:
    return Finding(
        rule=RULE.id,
        cause="A speculative worker handed a batch back without an input for its next draft.",
        confidence=Confidence.CERTAIN,
        evidence=(at(facts, death.place, death.message, f"raised in {death.frame or 'a place that is not shown'}"),),
        next_commands=("gemma4-triage repro corpus --only unmergeable-spec-info", "gemma4-triage patches"),
        fix="spec-info-guards",
        upstream=("SGLang 26859",),
    )


RULE = of_death("unmergeable-batch", "a batch without a draft input is merged", _explains, _tell)
