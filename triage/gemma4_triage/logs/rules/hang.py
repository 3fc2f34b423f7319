"""SGLang's watchdog: a step that never ended."""

from __future__ import annotations

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import at, of_death, on_rank, usage_text


def _explains(death: Death) -> bool:
    return "watchdog timeout (" in death.message


def _tell(facts: LogFacts, death: Death) -> Finding:
    evidence = [at(facts, death.place, death.message, f"SGLang's watchdog{on_rank(death.rank)}")]
    if death.usage is not None:
        usage = usage_text(death.usage.full, death.usage.swa)
        evidence.append(at(facts, death.usage.place, usage, "the last sign of life, and its pool usage"))
    return Finding(
        rule=RULE.id,
        cause="A scheduler made no progress until its watchdog ended it.",
        confidence=Confidence.POSSIBLE,
        evidence=tuple(evidence),
        ruled_out_if=("another rank died before: look for its exception",),
        next_commands=("gemma4-triage serve --debug 1 -- --model-path MODEL",),
    )


RULE = of_death("hang", "a step never ended", _explains, _tell, alarms=("watchdog",))
