"""Answers of a server that people paste beside its log, and notes of what they tried: what each shows by itself.

A server writes down no answer, so that its log alone cannot show a wrong one; what curl printed can. No word of an
answer is kept: `said_of` puts in its place what it shows, as a line of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gemma4_triage.logs.facts import Place, Remark
from gemma4_triage.logs.late_pattern import pattern

_ANSWER = "(an answer that was pasted"
_ZEROS, _SCORES, _TEXT = "token id 0 again and again", "all scores alike", "its text does not begin as JSON"
_MARKED = "a mark of the model's own in the arguments of a call"
_UNMARKED = "its text is a call without a mark"
_IN_TEXT = "a call stands in its text"
MARKS = (
    (_ANSWER.encode(), "answer_pasted"),
    (b'"delta":', "chunk_pasted"),
    (b"json_schema", "asked_schema"),
    (b'"tool_choice":', "asked_tool"),
    (b"APITimeoutError", "client_waited"),
    (b'"arguments":', "arguments_pasted"),
    *(
        (words, "call_unread")
        for words in (b"JSON parsing failed", b"JSON Parse error", b"arguments are not valid JSON")
    ),
    (b"patternProperties", "pattern_properties"),
)
"""What a line of an answer or a request holds, beside those of remarks.py."""
SHOWN = frozenset(
    {"zeros", "same_scores", "not_json", "schema_without_thoughts", "same_call_index", "stop_behind_calls"}
    | {"arguments_twice", "schema_of_no_type", "states_differ"}
    | {"alike_again", "only_thoughts", "pattern_properties"}
    | {"marks_in_arguments", "call_without_arguments", "calls_lost", "forced_call_in_text", "call_without_mark"}
)
"""Names under which `keep` keeps what such lines show."""
_MOST_CHOICES, _LONGEST = 16, 8000  # choices, bytes of a chunk that are looked at
_LONGEST_NOTES = 1600  # characters
_BANGS = pattern(r"!{6}")
_MARK = pattern(r"<\|[^<>|]{1,20}\|?>|</?(?:arg_key|arg_value|tool_call|parameter|function)\b")
_PIECE = pattern(rb"<\|.{0,3}\w|<\|?\\+[\"\w]|\\?[\"']\|>")
_CALL_AS_TEXT = pattern(
    r"<\W{0,3}(?:DSML\W{1,3})?(?:tool_calls?\b|invoke name=|function=)|\[TOOL_CALLS\]|<\W?tool.calls?.begin"
)
_CALL_WITHOUT_MARK = pattern(r"\s*call:\w{1,80}\{")
_FORCED = pattern(rb'"tool_choice":\s*(?:\{|\\?"(?:required|any)\\?")')
_NO_JSON = pattern(r'\s*(?![\s{\["\d-]|true|false|null)\S')
_FEWEST_ZEROS = 4  # in a row
_STREAM = pattern(r'"id":\s*"([^"]{1,100})"')
_CALL = pattern(r'"tool_calls":\s*\[\{(?=[^\]]*?"id":\s*"([^"]{1,100})")[^\]]*?"index":\s*(\d{1,4})')
_MORE_OF_A_CALL = pattern(r'"tool_calls":\s*\[\{')
_STOPPED = pattern(r'"finish_reason":\s*"stop"')
_NO_THOUGHTS = pattern(rb'(?i)thinking\\?["\']?\s*[:=]\s*false')
_TRIED = pattern(
    rb"#+ .{0,120}\b(?:same|identical) (?:[\w-]+ ){0,2}(?:command|request|conversation|body|call|folder|files?|"
    rb"checkpoint|image|"
    rb"overrides|flags|arg(?:ument)?s|server|start|launch|setup|node|machine|GPU|box|prompt(?= with))s?\b"
)
_NO_STREAM = pattern(rb"(?:stream\W{1,3}[Ff]alse\b|non-?stream(?:ing)?\b).{0,40}\bsame (?:request|prompt|body|call)\b")
_RERUN = pattern(
    rb"#+ (?:(?:re)?(?:start|launch|r[ua]n|serv|tri)\w*|(?:second|next|then|now|again)\b).{0,40}"
    rb"\b(?:with|without) --[a-z]|"
    rb"#+ (?:(?:with|without) )?--[a-z][\w-]+(?:[ =][\w./:-]+)?(?:,? .{0,60})?(?<!\\)\s*$"
)
GARBLED = r'"([^"\s])\1{7}'
"""One character again and again, as a note quotes an answer."""
_ALIKE = pattern(rb'(?i)"([^"\s])\1{7}|\bsame (?:garbage|garbled|nonsense|output|result|answer)|\bno difference\b')
_OF_A_KERNEL = pattern(rb"--[a-z\d-]+-backend\b")
_UP = ("ready", "http_ready", "vllm_serves", "answer_pasted")
_CLIENT = pattern(rb"#+ .{0,40}\bclient\b.{0,80}:\s*$")
_BUILD = pattern(rb"(#+ *(?:build|commit|nightly|image|release|version))\b.{0,60}\d")


def is_an_answer(found: Mapping[str, Any]) -> bool:
    """Say whether an object of JSON is what a server answers a request with."""
    if isinstance(found.get("choices"), list):
        return True
    results = found.get("results")
    return isinstance(results, list) and any(isinstance(one, dict) and "relevance_score" in one for one in results)


def said_of(found: Mapping[str, Any]) -> bytes:
    """Return a line that says what an answer shows; b"" if the object is none."""
    if not is_an_answer(found):
        return b""
    return f"{'; '.join((_ANSWER, *_shown(found)))})".encode()


def _shown(found: Mapping[str, Any]) -> Iterator[str]:
    scores = [one.get("relevance_score") for one in found.get("results") or () if isinstance(one, dict)]
    if len(scores) > 1 and scores.count(scores[0]) == len(scores):
        yield _SCORES
    choices = [one for one in (found.get("choices") or ())[:_MOST_CHOICES] if isinstance(one, dict)]
    texts = [text for one in choices if (text := _text_of(one))]
    if any(map(_BANGS.search, texts)) or any(_has_zeros(one.get("token_ids")) for one in choices):
        yield _ZEROS
    if any(map(_NO_JSON.match, texts)):
        yield _TEXT
    if any(map(_MARK.search, _arguments_of(choices))):
        yield _MARKED
    if any(map(_CALL_WITHOUT_MARK.match, texts)) and not any(_arguments_of(choices)):
        yield _UNMARKED
    if any(map(_CALL_AS_TEXT.search, texts)) and not any(_arguments_of(choices)):
        yield _IN_TEXT


def _arguments_of(choices: list[dict[str, Any]]) -> Iterator[str]:
    for choice in choices:
        message = choice.get("message")
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function") if isinstance(call, dict) else None
            given = function.get("arguments") if isinstance(function, dict) else None
            if isinstance(given, str):
                yield given[:_LONGEST]


def _text_of(choice: Mapping[str, Any]) -> str:
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    return text if isinstance(text, str) else ""


def _has_zeros(ids: object) -> bool:
    if not isinstance(ids, list):
        return False
    zeros = [0] * _FEWEST_ZEROS
    return any(ids[at : at + _FEWEST_ZEROS] == zeros for at in range(min(len(ids), _LONGEST)))


_STATE_TYPE = pattern(r"ssm dtype: (\S+)")
_TYPES = pattern(rb'"type\\?":\s*\\?"(\w+)')
_JSON_TYPES = frozenset(("object", "array", "string", "number", "integer", "boolean", "null"))
_SCHEMA = pattern(rb'"(?:json_)?schema\\?":\s*(?=\{)')


def _schema_in(line: bytes) -> bytes:
    """Return the object behind the last name of a schema in a request; what else it has has types of its own."""
    begin = next((found.end() for found in reversed(list(_SCHEMA.finditer(line)))), None)
    depth = 0
    for at in range(begin, min(len(line), begin + _LONGEST)) if begin is not None else ():
        depth += {ord("{"): 1, ord("}"): -1}.get(line[at], 0)
        if not depth:
            return line[begin : at + 1]
    return b"" if begin is None else line[begin : begin + _LONGEST]


_ARGUMENTS = pattern(r'"arguments":\s*"((?:[^"\\]|\\.)*)"')
_BEGINS_OBJECT = pattern(r'\s*\{"\w{1,80}":')
_FEWEST_ALIKE = 4  # characters


def _is_twice(quoted: str) -> bool:
    """Say whether arguments of a call begin anew within themselves, as where a stream wrote what it had written."""
    given = re.sub(r"\\(.)", r"\1", quoted)
    begin = found[0] if (found := _BEGINS_OBJECT.match(given)) else ""
    if len(begin) < _FEWEST_ALIKE or begin not in given[len(begin) :]:
        return False
    try:
        # A part within may have the name of the first.
        json.JSONDecoder().raw_decode(given.strip())
    except ValueError:
        return True
    except RecursionError:
        # Too deep to tell.
        return False
    return False


_OF_ANSWERS = (
    (_ZEROS, "zeros"),
    (_SCORES, "same_scores"),
    (_TEXT, "not_json"),
    (_MARKED, "marks_in_arguments"),
    (_UNMARKED, "call_without_mark"),
)


def keep(kept: dict[str, Remark], name: str, line: bytes) -> None:
    """Keep what an answer or a request shows, under a name for each such thing.

    Args:
        kept: remarks by their names, the line itself among them.
        name: of the line.
        line: as it stands.
    """
    if name == "asked_schema":
        if _NO_THOUGHTS.search(line):
            kept["schema_without_thoughts"] = kept[name]
        if b"patternProperties" in line:
            kept["pattern_properties"] = kept[name]
        if {found.decode() for found in _TYPES.findall(_schema_in(line))} - _JSON_TYPES:
            kept["schema_of_no_type"] = kept[name]
    elif name == "states":
        first, found = kept.get("first_states"), _STATE_TYPE.search(kept[name].text)
        if first is not None and found and (other := _STATE_TYPE.search(first.text)) and other[1] != found[1]:
            kept.setdefault("states_differ", kept[name])
        kept.setdefault("first_states", kept[name])
    elif name == "arguments_pasted":
        if any(map(_is_twice, _ARGUMENTS.findall(line[:_LONGEST].decode(errors="replace")))):
            kept["arguments_twice"] = kept[name]
    elif name == "call_unread":
        # What a client could not read it quotes.
        if _PIECE.search(line):
            kept.setdefault("marks_in_arguments", kept[name])
            # A client that cannot read a call says it as a note would.
            kept.setdefault("noted form", kept[name])
    elif name == "asked_tool":
        kept.pop("forced_tool", None)
        if _FORCED.search(line):
            kept["forced_tool"] = kept[name]
    elif name == "answer_pasted":
        said = kept[name]
        if _IN_TEXT in said.text and (asked := kept.pop("forced_tool", None)) is not None:
            kept.setdefault("forced_call_in_text", asked)
        for words, what in _OF_ANSWERS:
            if words in said.text and (what != "not_json" or "asked_schema" in kept):
                kept.setdefault(what, said)
    elif name == "chunk_pasted":
        _keep_chunk(kept, kept[name], line[:_LONGEST].decode(errors="replace"))


def _keep_chunk(kept: dict[str, Remark], said: Remark, text: str) -> None:
    """Keep what one chunk of a streamed answer shows beside those before it."""
    _keep_end(kept, said, text)
    stream = found[1] if (found := _STREAM.search(text)) else ""
    before = kept.get("streamed_call")
    last = before.text.split("\n") if before is not None else ["", "", ""]
    if call := _CALL.search(text):
        if last[0] == stream and last[1] == call[2] and last[2] != call[1]:
            kept.setdefault("same_call_index", said)
        kept["streamed_call"] = Remark(said.place, said.rank, f"{stream}\n{call[2]}\n{call[1]}")
    elif _MORE_OF_A_CALL.search(text) and last[0] != stream:
        kept["streamed_call"] = Remark(said.place, said.rank, f"{stream}\n\n")
    elif before is not None and last[0] == stream and _STOPPED.search(text):
        kept.setdefault("stop_behind_calls", said)


_BEGINS = pattern(r'"role":\s*"assistant"')
_GIVEN = pattern(r'"arguments":\s*"[^"]')
_ENDS_IN_CALLS = pattern(r'"finish_reason":\s*"tool_calls"')
_NEXT = 2  # lines: one that is empty stands between chunks


_THOUGHT = pattern(r'"reasoning_content":\s*"[^"]')
_CONTENT = pattern(r'"(?:content|arguments|name)":\s*"[^"]')


def _keep_thoughts(kept: dict[str, Remark], said: Remark, text: str) -> None:
    """Keep that a stream, all of whose chunks are here, brought thoughts, then ended with stop and had no content."""
    stream = found[1] if (found := _STREAM.search(text)) else ""
    if _CONTENT.search(text):
        kept.pop("thoughts_pasted", None)
    elif _THOUGHT.search(text):
        before = kept.get("thoughts_pasted")
        whole = before is None or said.place.line - before.place.line <= _NEXT
        kept["thoughts_pasted"] = Remark(said.place, said.rank, stream if whole else "")
    elif (
        _STOPPED.search(text)
        and (thoughts := kept.pop("thoughts_pasted", None)) is not None
        and thoughts.text == stream
        and said.place.line - thoughts.place.line <= _NEXT
    ):
        kept.setdefault("only_thoughts", said)


def _keep_end(kept: dict[str, Remark], said: Remark, text: str) -> None:
    """Keep that a stream ended in calls of which none came, or one without arguments; all its chunks have to be here.

    What is open is kept as of the chunk before.
    """
    _keep_thoughts(kept, said, text)
    state = ""
    if (before := kept.pop("open_stream", None)) is not None and said.place.line - before.place.line <= _NEXT:
        state = before.text
    if _MORE_OF_A_CALL.search(text):
        begun = state if "called" in state else "called"
        state = "called and given" if _GIVEN.search(text) or "given" in begun else begun
    elif _BEGINS.search(text):
        state = "begun"
    if _ENDS_IN_CALLS.search(text):
        found = {"begun": "calls_lost", "called": "call_without_arguments"}.get(state)
        if found is not None:
            kept.setdefault(found, said)
    elif state:
        kept["open_stream"] = Remark(said.place, said.rank, state)


def keep_note(kept: dict[str, Remark], line: bytes, place: Place) -> bool:
    """Say whether a line is a note of a second try, or of the build that wrote what follows, and keep it."""
    line = line.removeprefix(b"$ ")
    if not line.startswith(b"#") and not _NO_STREAM.match(line):
        return False
    before = f"{kept['notes'].text}\n" if "notes" in kept else ""
    kept["notes"] = Remark(place, "", (before + line[:400].decode(errors="replace").strip())[-_LONGEST_NOTES:])
    said = Remark(place, "", line[:400].decode(errors="replace").strip())
    if build := _BUILD.match(line):
        first = kept.setdefault("noted_build", said).text
        if first != said.text and first.startswith(build[1].decode()):
            kept["second_build"] = said
    elif _TRIED.match(line) or _NO_STREAM.match(line) or (_RERUN.match(line) and not kept.keys().isdisjoint(_UP)):
        kept["tried"] = said
        if _ALIKE.search(line) and _OF_A_KERNEL.search(line):
            kept["alike_again" if "alike" in kept else "alike"] = said
        return b" --" in line
    return False


def is_of_a_client(line: bytes) -> bool:
    """Say whether a note says that a client wrote the lines below it."""
    return _CLIENT.match(line) is not None


def answers(kept: Mapping[str, Remark]) -> int:
    """Return 1 if an answer of a server stands in the log, else 0."""
    return int(not {"answer_pasted", "chunk_pasted"}.isdisjoint(kept))
