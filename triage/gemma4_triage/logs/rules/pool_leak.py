"""SGLang's own checker found that a pool's tokens do not add up."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_dumps.wording import number_of
from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LeakLine, LogFacts
from gemma4_triage.logs.rule import Rule, at

_SHOWN = 4


def _explains(death: Death) -> bool:
    return "leak detected!" in death.message.lower()


def _find(facts: LogFacts) -> Iterator[Finding]:
    first: dict[str, LeakLine] = {}
    for leak in facts.leaks:
        first.setdefault(leak.pool, leak)
    if not first:
        return
    what = " and ".join(_sentence(leak) for leak in first.values())
    ends = any(_explains(death) for death in facts.deaths)
    yield Finding(
        rule=RULE.id,
        cause=f"The pools do not add up: {what}{'; the server ended there' if ends else ''}.",
        confidence=Confidence.CERTAIN,
        evidence=tuple(at(facts, leak.place, leak.text, _missing(leak)) for leak in facts.leaks[:_SHOWN]),
        next_commands=("gemma4-triage audit --live", "gemma4-triage audit latest"),
    )


def _missing(leak: LeakLine) -> str:
    return f"{number_of(abs(leak.missing), 'token')} {'missing' if leak.missing > 0 else 'too many'}"


def _sentence(leak: LeakLine) -> str:
    pool = f"of the {leak.pool} pool"
    if leak.missing > 0:
        return f"{leak.missing} of {leak.total} tokens {pool} {'is' if leak.missing == 1 else 'are'} nobody's"
    return f"{number_of(-leak.missing, f'token {pool} is', f'tokens {pool} are')} counted twice"


RULE = Rule("pool-leak", "tokens of a pool are lost or counted twice", _find, _explains, alarms=frozenset({"leak"}))
