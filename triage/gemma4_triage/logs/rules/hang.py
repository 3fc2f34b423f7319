"""SGLang's watchdog: a step that never ended."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.diagnose.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import Rule, at, on_rank, usage_text


def _explains(death: Death) -> bool:
    return "watchdog timeout (" in death.message


def _find(facts: LogFacts) -> Iterator[Finding]:
    death = next((death for death in facts.deaths if _explains(death)), None)
    if death is None:
        return
    evidence = [at(facts, death.place, death.message, f"SGLang's watchdog{on_rank(death.rank)}")]
    if death.usage is not None:
        usage = usage_text(death.usage.full, death.usage.swa)
        evidence.append(at(facts, death.usage.place, usage, "the last sign of life, and its pool usage"))
    yield Finding(
        rule=RULE.id,
        cause="A scheduler made no progress until its watchdog ended it.",
        confidence=Confidence.POSSIBLE,
        evidence=tuple(evidence),
        ruled_out_if=("another rank died before: look for its exception",),
        next_commands=("gemma4-triage serve --debug 1 -- --model-path MODEL",),
    )


RULE = Rule("hang", "a step never ended", _find, _explains)
