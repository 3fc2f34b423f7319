"""Why a server that is whole does not answer, or answers 500 without an exception: a pause, or a refusal it hides."""

from __future__ import annotations

from gemma4_triage.logs.facts import LogFacts, Remark
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import last_work

STANDS = frozenset({"health", "watchdog", "stopped-answering", "timeout"})
CONTINUE = (
    "POST /continue_generation. Where a call behind the pause never returned (an update, a treatment or a release of "
    "weights), it waits for requests that are paused in place, and these for it: pause with mode abort or retract "
    "before such a call, or wait until none runs; then a later release (SGLang 29670)"
)
_HIDDEN = pattern(r"(?:POST|GET) /?\S*(/v1/(?:messages|responses|rerank|score|classify|audio)\b)")
_OF_ANOTHER_API = (
    "no exception stands beside it, so {0} may hide a refusal (400) of the server's own, such as a prompt "
    "that with max_tokens is longer than the context (a conversation that has grown): the same messages to "
    "/v1/chat/completions answer with the reason; a shorter prompt, a smaller max_tokens or a larger --context-length; "
    "a later release hands the reason on"
)


def paused_before(facts: LogFacts) -> Remark | None:
    """Return the last pause of generation that nothing continued and no batch followed; None if there is none."""
    paused = facts.remarks.get("paused")
    return paused if paused is not None and last_work(facts) < paused.place.line else None


def hidden_refusal(facts: LogFacts, text: str) -> str:
    """Return what to do about an answer with status 500 beside which no exception stands; "" if one does."""
    found = _HIDDEN.search(text)
    return "" if found is None or facts.errors else _OF_ANOTHER_API.format(found[1])
