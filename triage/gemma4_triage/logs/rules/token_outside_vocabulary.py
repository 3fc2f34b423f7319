"""A token id that no vocabulary has reached the detokenizer."""

from __future__ import annotations

import re

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import of_death, of_failure, of_settings, says

_WORDS = re.compile(
    r"out of range integral type conversion attempted|piece id is out of range|can't convert negative int to unsigned|"
    r"token id .{0,40}(?:out of|outside).{0,20}(?:vocab|range)"
)


def _tell(facts: LogFacts, death: Death) -> Finding:
    return Finding(
        rule=RULE.id,
        cause="A token id outside the vocabulary reached the detokenizer: sampling or a draft gave what is no token.",
        confidence=Confidence.LIKELY,
        evidence=(
            *of_failure(facts, death),
            *of_settings(facts, "speculative_algorithm", "quantization", "disable_overlap_schedule"),
        ),
        ruled_out_if=("a client sent token ids of its own (input_ids, skip_tokenizer_init)",),
        advice=(
            "once with --enable-nan-detection: NaN logits are the usual source",
            "once without drafts, once with --disable-overlap-schedule: a value that is read before it is written",
        ),
    )


RULE = of_death("token-outside-vocabulary", "a token id that no vocabulary has", says(_WORDS), _tell)
