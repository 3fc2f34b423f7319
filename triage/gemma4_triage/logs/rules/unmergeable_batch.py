"""A verify round in which all requests finished left its own input on the batch, which cannot be merged."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gemma4_triage.diagnose.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import Rule, at

_MESSAGE = re.compile(r"'\w+VerifyInput' object has no attribute '(?:merge_batch|filter_batch)'")


def _explains(death: Death) -> bool:
    return death.type_name == "AttributeError" and bool(_MESSAGE.search(death.message))


def _find(facts: LogFacts) -> Iterator[Finding]:
    death = next((death for death in facts.deaths if _explains(death)), None)
    if death is None:
        return
    yield Finding(
        rule=RULE.id,
        cause="A speculative worker handed a batch back without an input for its next draft.",
        confidence=Confidence.CERTAIN,
        evidence=(at(facts, death.place, death.message, f"raised in {death.frame or 'a place that is not shown'}"),),
        next_commands=("gemma4-triage repro corpus --only unmergeable-spec-info",),
        upstream=("SGLang 26859",),
    )


RULE = Rule("unmergeable-batch", "a batch without a draft input is merged", _find, _explains)
