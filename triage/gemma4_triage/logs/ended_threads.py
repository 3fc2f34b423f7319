"""A thread of a server ended of an exception, and its process went on without it: what the thread did nobody does."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern

_THREAD = pattern(r"threading\.py:\S* (?:_bootstrap_inner|_bootstrap|run)$")
_TRANSFERS = pattern(r".* \w*(?:transfer_worker|transfer_thread|decode_thread|prefill_thread|heartbeat\w*)$")
_GOES_ON = (
    "restart this server now: the thread is gone and nothing starts it again, so that every request whose KV it would "
    "send or take waits until its time is out. One request was enough for it (one with nothing to send of a kind that "
    "this model has: states, a window, an index): a later release on both sides fails that request alone"
)
_OF_ANOTHER = (
    "restart this server: the thread is gone and nothing starts it again, so that what it did (copies to the host, "
    "answers, metrics) is not done any more, while requests go on; then a later release"
)


def went_on(facts: LogFacts, death: Death) -> bool:
    """Say whether it ended a thread alone: batches follow it."""
    if not death.of_thread and not (death.frames and _THREAD.match(death.frames[0])):
        return False
    lines = (line for rank in facts.schedulers for line in rank.series["line"][-1:])
    return any(line > death.place.line for line in lines)


_BELOW = 60  # lines
_NOT_DONE = (
    "what that task was to do (an abort, an update) was not done, though the call that began it may have been answered "
    "with 200: end a request by closing its connection until then; a later release of SGLang"
)


def in_the_background(facts: LogFacts, death: Death) -> bool:
    """Say whether it ended a task beside the requests alone, which the line above it tells of."""
    said = facts.remarks.get("background")
    return said is not None and 0 < death.place.line - said.place.line <= _BELOW


def look(facts: LogFacts, death: Death) -> Iterator[str]:
    """Yield what to do about a server whose thread ended, by what the thread did; nothing where a process ended."""
    if in_the_background(facts, death):
        yield _NOT_DONE
    if went_on(facts, death):
        yield _GOES_ON if any(map(_TRANSFERS.match, death.frames)) else _OF_ANOTHER
