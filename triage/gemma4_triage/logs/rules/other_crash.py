"""A process died of something that no other rule knows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import at, exception_text, on_rank

ID = "other-crash"
TITLE = "a process died of something that no other rule knows"


def find(facts: LogFacts, unexplained: Iterable[Death]) -> Iterator[Finding]:
    """unexplained: the deaths that are left, in the order of the log. One finding per kind of exception."""
    seen: set[tuple[str, str]] = set()
    for death in unexplained:
        if (death.type_name, death.frame) in seen:
            continue
        seen.add((death.type_name, death.frame))
        yield Finding(
            rule=ID,
            cause=f"A process died of {death.type_name or 'an error'}{on_rank(death.rank)}"
            f"{', in ' + death.frame if death.frame else ''}; no rule here knows its cause.",
            confidence=Confidence.POSSIBLE,
            evidence=(at(facts, death.place, exception_text(death), "the exception, and where its traceback begins"),),
            next_commands=("gemma4-triage doctor", "gemma4-triage serve --debug 1 -- --model-path MODEL"),
        )
