"""A tool-call or reasoning parser could not read an answer: marks of the model reach the content."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import at, of_death, of_failure, of_settings, over, says
from gemma4_triage.logs.started import Started

_WORDS = pattern(
    r"(?:Tool call|Reasoning) parsing error|Error in (?:detect_and_parse|parse_streaming_increment)|"
    r"Failed to parse (?:tool calls?|reasoning)|HarmonyError(?!.*(?:vocab|download))|"
    r"Unexpected token \d+ while expecting|Expected \d+ output messages"
)
# A vocabulary that cannot be fetched is no answer.
_HARMONY = pattern(
    r"HarmonyError(?!.*(?:vocab|download))|Unexpected token \d+ while expecting|Expected \d+ output messages"
)


_PARSER = pattern(
    r"(?:\w*_detector|function_call_parser|reasoning_parser|harmony_parser)\.py:|.* (?:parse_streaming_increment|"
    r"detect_and_parse|_partial_json_loads)$"
)


def _tell(facts: LogFacts, death: Death) -> Finding:
    alarm = next((alarm for alarm in facts.alarms if alarm.kind == "parser"), None)
    many = [over(facts, "such lines", alarm.count, "answers that were not parsed")] if alarm and alarm.count > 1 else []
    if (harmony := _harmony(facts, death)) is not None:
        return harmony
    if (unset := _NOT_SET.search(death.message)) is not None:
        named = "none was set" if unset[1] in ("None", None) else f"{unset[1]} is none that this release knows"
        return Finding(
            rule=RULE.id,
            cause=f"A request with tools came to a server without a parser for them: {named}. Only such requests fail.",
            confidence=Confidence.LIKELY,
            evidence=(
                *of_failure(facts, death, "what the server said"),
                *of_settings(facts, "tool_call_parser", "model_path"),
            ),
            ruled_out_if=("the start line has a --tool-call-parser of the model's",),
            advice=(
                "start with the model's own --tool-call-parser (gemma4, gpt-oss, qwen3_coder, ...; launch_server "
                "--help lists them), or leave tools out of the requests",
            ),
        )
    if any(map(_BEFORE.match, death.frames)):
        return _of_the_request(facts, death)
    return Finding(
        rule=RULE.id,
        cause="A parser could not read what the model wrote, so calls or thoughts are lost or stand in the "
        "content. Only such "
        "requests fail; the server goes on.",
        confidence=Confidence.LIKELY,
        evidence=(
            *of_failure(facts, death, "what the parser said"),
            *many,
            *of_settings(facts, "tool_call_parser", "reasoning_parser"),
        ),
        ruled_out_if=("the same prompt at temperature 0 gives a call that is complete and of the model's own format",),
        advice=(
            *((_NO_JSON,) if _OF_JSON.search(death.message) else ()),
            *(_ITS_OWN if _has_its_own(facts) else (_THE_MODELS, _NO_STREAM)),
            "send the prompt with skip_special_tokens false and no tools: it shows the marks that the model writes",
            "an answer that max_tokens cuts, or a chat template of another model, breaks the format too",
        ),
    )


_OF_JSON = pattern(r"string indices must be integers|zero-length, empty document|line 1 column 1 \(char 0\)")
_NO_JSON = (
    "a later release, if the parser is the model's own: what the model writes in a form of its own went through the "
    "decoder of JSON that forced calls (tool_choice required) have, as where its parser found no call"
)
_THE_MODELS = "the parsers have to be the model's: --tool-call-parser gemma4 and --reasoning-parser gemma4 for Gemma-4"
_NO_STREAM = "once without streaming, or with a later release: parsers of streams meet halves of a call"
_ITS_OWN = (
    "a later release: the parser here is the model's own, and met a half or a broken call of a stream; some keep it "
    "and fail again at each further token, so that the client has the same marks again and again",
    "until then requests with tools that do not stream, which are read whole",
)


def _has_its_own(facts: LogFacts) -> bool:
    """Say whether the parser of tool calls is the one that is known for this model."""
    start = Started(facts)
    return bool(start.value("tool_call_parser")) and "tool_parser" in start.words and not start.has_other_tool_parser


_BEFORE = pattern(r".* (?:structure_info|get_structure_\w+|structural_tag|build_ebnf|get_model_structural_tag)$")


def _of_the_request(facts: LogFacts, death: Death) -> Finding:
    return Finding(
        rule=RULE.id,
        cause="A request asks for tool calls of a fixed form, which the parser of this server cannot demand of the "
        "model: it failed before anything was generated. Only such requests fail; the server goes on.",
        confidence=Confidence.LIKELY,
        evidence=(
            *of_failure(facts, death, "what the parser said"),
            *of_settings(facts, "tool_call_parser", "grammar_backend"),
        ),
        ruled_out_if=("the same request with tool_choice auto and without strict fails alike",),
        advice=(
            'leave "strict" out of the tools, and tool_choice at auto in place of required or a name',
            "a later release, whose parser has that form; the --tool-call-parser has to be the model's own",
        ),
    )


_NOT_SET = pattern(r"Unsupported tool_call_parser(?:: (\S+))?")


def _harmony(facts: LogFacts, death: Death) -> Finding | None:
    if _HARMONY.search(f"{death.type_name}: {death.message}") is None:
        return None
    if _of_a_client(facts, death):
        return _told_by_a_client(facts, death)
    return Finding(
        rule=RULE.id,
        cause="The parser of gpt-oss's Harmony format met an answer that the model wrote in another order. Only "
        f"such requests fail{', with a 500' * _answered_500(facts)}; the server goes on.",
        confidence=Confidence.LIKELY,
        evidence=(
            *of_failure(facts, death, "what the parser said"),
            *of_settings(facts, "tool_call_parser", "reasoning_parser"),
        ),
        ruled_out_if=("every request fails, of any prompt",),
        advice=(
            "take a later release of SGLang, with its openai-harmony: the parsers have become more tolerant, and each "
            "stream has one of its own",
            "until then send the request again: another sample is mostly well formed; no restart is needed",
        ),
    )


def _answered_500(facts: LogFacts) -> bool:
    return any(alarm.kind == "answered-500" for alarm in facts.alarms)


def _of_a_client(facts: LogFacts, death: Death) -> bool:
    """Say whether a program that had its answer of the server raised it, and no request failed of the server."""
    failed = _answered_500(facts)
    of_a_server = any(map(_SERVES.match, death.frames))
    return bool(death.frames) and not (failed or death.path or death.caller or of_a_server)


_SERVES = pattern(r"(?:serving\w*|harmony_utils|\w*_parser|protocol|context|routing|responses\w*)\.py:")


_SCHEMA = (
    "Its format is not to blame: a schema holds from the mark that ends the thoughts on, so that the model may not "
    "write the header of its answer (<|start|>assistant<|channel|>final<|message|>), which this parser asks for."
)
_NO_SCHEMA = (
    "no json_schema together with thoughts (require_reasoning, --reasoning-parser) on gpt-oss: a tool call or a "
    "structural tag, or the schema in the prompt and a check in the client",
    "or take the JSON behind the thoughts' <|end|> in the client, without a parser of Harmony",
    "then a later release, whose grammar lets that header pass (SGLang 31019); another sample has the same form",
)
_AS_WRITTEN = (
    "look at the tokens that the server gave (skip_special_tokens false): Harmony's marks have to be among them, and "
    "the parser has to be given those behind the prompt's last <|start|>assistant",
    "a later openai-harmony in the client; or let the server parse it: /v1/chat/completions with --reasoning-parser "
    "and --tool-call-parser gpt-oss",
)


def _told_by_a_client(facts: LogFacts, death: Death) -> Finding:
    asked = facts.remarks.get("asked_schema") if "start token" in death.message else None
    return Finding(
        rule=RULE.id,
        cause="A client's own parser of gpt-oss's Harmony format refused an answer; no request failed in the server. "
        f"{_SCHEMA if asked else 'What it was given is not of the order that it asks for.'}",
        confidence=Confidence.LIKELY if asked else Confidence.POSSIBLE,
        evidence=(
            *of_failure(facts, death, "what the client's parser said"),
            *([at(facts, asked.place, asked.text[:_LONGEST], "the request has a schema")] if asked else ()),
            *of_settings(facts, "reasoning_parser", "grammar_backend"),
        ),
        ruled_out_if=("the same request without the schema is refused alike",) if asked else (),
        advice=_NO_SCHEMA if asked else _AS_WRITTEN,
        upstream=("SGLang 31019",) if asked else (),
    )


_LONGEST = 160  # characters


def _find(facts: LogFacts) -> Iterator[Finding]:
    found = list(_OF_DEATH.find(facts))
    # A handler writes the exception down and answers 500: the server survives it.
    survived = next((error for error in facts.errors if _HARMONY.search(f"{error.type_name}: {error.message}")), None)
    if not found and survived is not None and (finding := _harmony(facts, survived)) is not None:
        found = [finding]
    if not found:
        in_a_parser = next((error for error in facts.errors if any(map(_PARSER.match, error.frames))), None)
        found = [_tell(facts, in_a_parser)] if in_a_parser is not None else []
    yield from found


def _explains(death: Death) -> bool:
    return says(_WORDS)(death) or says(_NOT_SET)(death)


_OF_DEATH = of_death("answer-parser", "a parser could not read an answer", _explains, _tell)
RULE = replace(
    _OF_DEATH,
    find=_find,
    alarms=frozenset({"parser", "answered-500"}),
)
