"""What ended a server resembles public incidents whose cause became known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.likeness import Likeness, alike
from gemma4_triage.logs.rule import at, exception_text
from gemma4_triage.logs.rules import known_issue, probe_stopped
from gemma4_triage.threads import thread_name, thread_url

ID = "like-incidents"
TITLE = "what ended it is like public incidents whose cause became known"
_NAMED = 4  # signs


NEAR = 0.6
"""Likeness from which another's cause says more than a rule that only repeats what was said, or than what is possible.

As near as this was, in incidents that were drawn without a look at the list, hardly anything but the very thread.
"""

VERY_NEAR = 0.85
"""Likeness from which another's cause says more than a rule of a whole kind, however likely: what one thread of that
kind came to is known, and a rule tells what most of them come to; but for one that has a command of its own, with the
numbers of the log."""


def listed_for(facts: LogFacts, told: Sequence[Finding]) -> list[Likeness]:
    """Return the incidents to tell of, the most alike first; none where a finding says for sure which thread it is.

    Args:
        facts: The log.
        told: What other rules say of it.
    """
    if not told or {known_issue.ID, probe_stopped.RULE.id} & {finding.rule for finding in told}:
        return []
    if any(finding.confidence is Confidence.CERTAIN and finding.fix for finding in told):
        # What it was is certain, and what mends it is here.
        return []
    named = {thread for finding in told for thread in finding.upstream}
    return [one for one in alike(facts) if thread_name(one.incident.thread) not in named]


def find(facts: LogFacts, listed: Sequence[Likeness]) -> Iterator[Finding]:
    """Yield one finding of these incidents, if there are any."""
    if not listed:
        return
    first = facts.failures[0] if facts.failures else facts.errors[0]
    threads = [thread_name(one.incident.thread) for one in listed]
    yield Finding(
        rule=ID,
        cause=" ".join((*map(_told, listed), "Whether that is the cause here is not known.")),
        confidence=Confidence.POSSIBLE,
        evidence=tuple(at(facts, first.place, exception_text(first), _in_what(one)) for one in listed),
        ruled_out_if=("this server has not what the thread names: its model, its options, its GPU",),
        advice=tuple(dict.fromkeys(one.incident.next for one in listed if one.incident.next)),
        upstream=tuple(thread for thread in threads if thread_url(thread)),
    )


def _told(one: Likeness) -> str:
    return f"{thread_name(one.incident.thread)} failed alike, and its cause was: {one.incident.cause}."


def _in_what(one: Likeness) -> str:
    signs = (sign.lstrip("!@=") for sign in one.signs[:_NAMED])
    return f"{one.share:.0%} like {thread_name(one.incident.thread)}, in {', '.join(signs)}"
