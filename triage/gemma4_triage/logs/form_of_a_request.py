"""A request that notes beside a failure name: its endpoint, what it brings, and with which form of it all is well."""

from __future__ import annotations

from collections.abc import Iterator

from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern

_ASKED = pattern(r"\b(?:POST|GET) /\w|\bcurl\b.{0,80}/\w")
_IDS = pattern(r"\binput_ids\b|\bprompt_token_ids\b")
_MEDIA = pattern(r"\b(?:image|video|audio|multi_modal)_data\b|\b(?:images?|pictures?|videos?)\b")
_WELL = pattern(
    r"(/(?:v1/[\w/]+|generate|api/\w+)\b)(?: (?!fails|dies|also|too|not)[\w-]+){0,6} (?:works|is (?:fine|right|well)|"
    r"answers(?! (?:with )?[45]\d\d)|succeeds)\b"
)
_OF_THE_FORM = frozenset({"IndexError", "ValueError", "RuntimeError", "AssertionError", "KeyError", "TypeError"})
_AS_TEXT = (
    "send the prompt as text beside the pictures (image_data), or through /v1/chat/completions, in place of input_ids "
    "that a processor at the client has made: those have each picture's mark expanded already, and the server's "
    "processor expands it once more, so that marks and pictures no longer fit; ids with one mark for each picture are "
    "what it expects"
)
_BY_ANOTHER = (
    "hold such a request against one to {0}, with which all is well by the notes: server, model and files are whole, "
    "and what differs is what this endpoint is sent"
)


def _notes(facts: LogFacts) -> str:
    return facts.remarks["notes"].text if "notes" in facts.remarks else ""


def is_of_one(facts: LogFacts, death: Death) -> bool:
    """Say whether notes tell of one request, and nothing of a process that ended with an exception without frames."""
    return not (death.frames or death.rank or death.place.time) and bool(_ASKED.search(_notes(facts)))


def look_at_the_form(facts: LogFacts, death: Death) -> Iterator[str]:
    """Yield what to send instead, where notes say what a request brought that failed."""
    if death.type_name not in _OF_THE_FORM:
        return
    notes = _notes(facts)
    if any(_IDS.search(line) and _MEDIA.search(line) for line in notes.splitlines()):
        yield _AS_TEXT
    if _ASKED.search(notes) and (well := _WELL.search(notes)):
        yield _BY_ANOTHER.format(well[1])
