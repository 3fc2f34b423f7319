"""A tool-call or reasoning parser could not read an answer: marks of the model reach the content."""

from __future__ import annotations

import re

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import of_death, of_failure, of_settings, over, says

_WORDS = re.compile(
    r"(?:Tool call|Reasoning) parsing error|Error in (?:detect_and_parse|parse_streaming_increment)|"
    r"Failed to parse (?:tool calls?|reasoning)"
)


def _tell(facts: LogFacts, death: Death) -> Finding:
    alarm = next((alarm for alarm in facts.alarms if alarm.kind == "parser"), None)
    many = [over(facts, "such lines", alarm.count, "answers that were not parsed")] if alarm and alarm.count > 1 else []
    return Finding(
        rule=RULE.id,
        cause="A parser could not read what the model wrote, so calls or thoughts are lost or stand in the content.",
        confidence=Confidence.LIKELY,
        evidence=(
            *of_failure(facts, death, "what the parser said"),
            *many,
            *of_settings(facts, "tool_call_parser", "reasoning_parser"),
        ),
        ruled_out_if=("the same prompt at temperature 0 gives a call that is complete and of the model's own format",),
        advice=(
            "the parsers have to be the model's: --tool-call-parser gemma4 and --reasoning-parser gemma4 for Gemma-4",
            "send the prompt with skip_special_tokens false and no tools: it shows the marks that the model writes",
            "an answer that max_tokens cuts, or a chat template of another model, breaks the format too",
        ),
    )


RULE = of_death("answer-parser", "a parser could not read an answer", says(_WORDS), _tell, alarms=("parser",))
