"""A probe of this project found a violation: the log names the dump that holds the evidence."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from gemma4_dumps.wording import CONTAINED
from gemma4_triage.finding import Confidence, Evidence, Finding, Kind
from gemma4_triage.logs.events import trapped
from gemma4_triage.logs.facts import Death, GuardLine, LogFacts
from gemma4_triage.logs.rule import Rule, at

_SHOWN = 4
_VERBS = {"leak-audit": "audit"}


def shows_one_key_more(summary: str) -> bool:
    """Return whether a comparison's summary is of the window as SGLang up to 0.5.22 ships it.

    Such as `target window_left, layers 0, 1: found 32, expected 31`.
    """
    found, _, expected = summary.partition("found ")[2].partition(", expected ")
    width = "window_left" in summary and found.isdecimal() and expected.isdecimal()
    return width and len(found) < 12 and len(expected) < 12 and int(found) == int(expected) + 1


def dump_names(facts: LogFacts) -> tuple[str, ...]:
    """Return the ids of the dumps that the log names, each once."""
    return tuple(dict.fromkeys(_name(guard.dump) for guard in _guard_lines(facts) if guard.dump))


def _guard_lines(facts: LogFacts) -> list[GuardLine]:
    found = [guard for death in facts.deaths if (guard := trapped(death))] + list(facts.guards)
    # The line of the probe itself may stand before what was kept of the log.
    return found or [guard for death in facts.deaths if (guard := _contained(death))]


def _contained(death: Death) -> GuardLine | None:
    """Return the end of a request that containment has ended as what the probe found; None for any other death."""
    _, mark, reason = death.message.partition(CONTAINED)
    return GuardLine(death.place, "", "contained", reason, "") if mark else None


def _explains(death: Death) -> bool:
    return trapped(death) is not None or _contained(death) is not None


def _find(facts: LogFacts) -> Iterator[Finding]:
    by_rule: dict[tuple[str, bool], list[GuardLine]] = {}
    for guard in _guard_lines(facts):
        known = guard.action == "logged" and shows_one_key_more(guard.summary)
        by_rule.setdefault((guard.rule, known), []).append(guard)
    for (rule, known), guards in by_rule.items():
        first = guards[0]
        what = "a known property of the release" if known else "a violation"
        dumps = list(dict.fromkeys(guard.dump for guard in guards if guard.dump))
        yield Finding(
            rule=RULE.id,
            kind=Kind.NOTE if known else Kind.CAUSE,
            cause=f"The probe {rule or '(unnamed)'} {first.action} {what}: {first.summary}",
            confidence=Confidence.CERTAIN,
            evidence=tuple(piece for guard in guards[:_SHOWN] for piece in _evidence(facts, guard)),
            next_commands=tuple(_command(rule, dump) for dump in dumps[:_SHOWN]),
        )


def _evidence(facts: LogFacts, guard: GuardLine) -> Iterator[Evidence]:
    yield at(facts, guard.place, guard.summary, f"{guard.action} by {guard.rule or 'a probe'}")
    if guard.dump:
        yield at(facts, guard.place, _name(guard.dump), "the dump that it wrote")
    elif guard.problem:
        yield at(facts, guard.place, guard.problem, "why it wrote no dump")


def _name(dump: str) -> str:
    return dump.rstrip("/").rsplit("/", 1)[-1]


def _command(rule: str, dump: str) -> str:
    verb = _VERBS.get(rule, "dumps show")
    return f"gemma4-triage {verb} {shlex.quote(dump)}"


RULE = Rule("probe-stopped", "a probe of ours found a violation and wrote a dump", _find, _explains)
