"""Somebody noted beside a log what no line of it shows: answers are wrong, calls lack, it is slow, memory grows."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs import implied_by_another, said_in_notes, since_an_update, trouble_in_other_words
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.notes_in_prose import DIFFERENCE, IMPLIED, LOOSELY, NOTED, beside, difference, kinds_noted
from gemma4_triage.logs.rule import Rule, at
from gemma4_triage.logs.suspects import NOTED_DIFFERENCE, WELL_WITH_IT, suspects
from gemma4_triage.logs.trouble_in_words import Seen

SEES = {
    "answers": "answers are wrong, repeat themselves or differ",
    "form": "tool calls, thoughts or JSON are missing or in the wrong place",
    "speed": "it is slow",
    "silence": "answers do not come",
    "memory": "memory grows while it serves",
    "requests": "requests fail, or their answers break off",
}
"""What somebody sees, by kinds of suspects."""
_MOST = 4
_LISTED = " What this server's start and load are known for is listed, the most likely first; try one change at a time."
_LOOK = {
    "speed": (
        "hold the decode lines of that time against earlier ones: cuda graph: False beside more requests than were "
        "captured (--cuda-graph-max-bs), a queue, a usage near 1 with retracted requests, and tokens per second for "
        "each request: each has a remedy of its own",
    ),
    "requests": (
        "one such request alone, with curl -i at the server's own host and port: its status and body say who refuses "
        "it (400: a field of its own; 500: the server, whose stderr has the traceback; 502 to 504 and a connection "
        "that is closed: a proxy or router, or a server that is gone); the whole stderr of that minute",
        "if it is answered alone: the same with as many at once, then without what such requests have (images, tools, "
        "response_format, stream, an adapter), one at a time; then a later release",
    ),
    "silence": (
        "curl -m 60 of /health_generate on the server's own host while a client waits: if that answers, the proxy, the "
        "client's timeout and its pool of connections; if not, py-spy dump of every process of the server",
    ),
    "memory": (
        "gemma4-triage collect URL twice, some hours apart: it has the memory of each process, of the host and of the "
        "GPU; then a later release, and a restart in turns until then",
    ),
}
"""What to look at first where neither the start nor the load is known for it."""
_TRIES = frozenset({NOTED_DIFFERENCE, "second-try", "between-builds", "between-scores"})
"""Suspects of what somebody tried beside this start, or where else."""
_OF_OTHERS = (IMPLIED, DIFFERENCE, "tried", "second_build", "scored 0", since_an_update.NOTES)
"""Notes of what is well elsewhere."""
_ELSEWHERE = "something else was tried and is well, or better, so that something here is not"
_IDLE, _OF_A_CORE = "core-of-an-idle-server", pattern(r"(?i)\bcores?\b|\bcpu\b|\bidle\b")


_SPOILT = pattern(r"(?i)\bloops?\b|\bgarbage\b|\bnonsens\w*|\brepeats?\b|\bgibberish\b")


def _by_another(facts: LogFacts) -> Seen | None:
    """Return of what kind something else is well by the notes; None if they say nothing so."""
    if (said := facts.remarks.get(IMPLIED)) is not None:
        return implied_by_another.kind_of(said.text.encode())
    if (tried := next((one for one in suspects(facts) if one.id in _TRIES), None)) is not None:
        return tried.of
    return "answers" if difference(facts) is not None or since_an_update.steps(facts) else None


def _find(facts: LogFacts) -> Iterator[Finding]:
    # Of a server that stands another rule tells, where the log does not go on; of one client or a word alone none does.
    stands = said_in_notes.NAME in facts.remarks
    seen = next((kind for kind in kinds_noted(facts) if kind != "silence" or stands), "silence" if stands else None)
    loosely = facts.remarks.get(LOOSELY)
    if seen is None and loosely is not None:
        seen = trouble_in_other_words.kind_of(loosely.text.encode())
    told = SEES.get(seen or "", "")
    if seen is None:
        seen, told = _by_another(facts), _ELSEWHERE
    if seen is None:
        return
    note = facts.remarks.get(NOTED.format(seen)) or facts.remarks.get(said_in_notes.NAME) or loosely
    note = note or next(facts.remarks[name] for name in _OF_OTHERS if name in facts.remarks)
    # A core that is busy while nothing is asked makes no answer slow.
    tries = [one for one in suspects(facts) if one.of == seen and (one.id != _IDLE or _OF_A_CORE.search(note.text))]
    if seen == "form":
        # What spoils an answer spoils its calls.
        others = [one for one in suspects(facts) if one.of == "answers" and not one.broad and one.threads]
        ahead = 0 if _SPOILT.search(note.text) else 2
        tries = [*tries[:ahead], *others[:1], *tries[ahead:]]
    # With an earlier build that was well nobody has to guess at options.
    steps = (*since_an_update.steps(facts), *(one.text for one in tries[:_MOST])) or _LOOK.get(seen, ())
    if not steps and difference(facts) is not None:
        steps = (WELL_WITH_IT,)
    if not steps:
        return
    finding = Finding(
        rule=RULE.id,
        cause=f"Unknown cause: a note beside the log says what no line of a log shows, that {told}."
        + (_LISTED if tries else ""),
        confidence=Confidence.POSSIBLE,
        evidence=(at(facts, note.place, note.text, "the note"),),
        ruled_out_if=("the same request is answered well by this server, started alike",),
        advice=steps,
    )
    yield from beside(facts, (finding,))


RULE = Rule("noted-trouble", "a note says what no line of a log shows", _find)
