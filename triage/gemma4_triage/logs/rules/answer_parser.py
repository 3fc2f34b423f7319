"""A tool-call or reasoning parser could not read an answer: marks of the model reach the content."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import of_death, of_failure, of_settings, over, pattern, says

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
            "the parsers have to be the model's: --tool-call-parser gemma4 and --reasoning-parser gemma4 for Gemma-4",
            "once without streaming, or with a later release: parsers of streams meet halves of a call",
            "send the prompt with skip_special_tokens false and no tools: it shows the marks that the model writes",
            "an answer that max_tokens cuts, or a chat template of another model, breaks the format too",
        ),
    )


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
    return Finding(
        rule=RULE.id,
        cause="The parser of gpt-oss's Harmony format met an answer that the model wrote in another order. Only "
        "such requests "
        "fail, with a 500; the server goes on.",
        confidence=Confidence.LIKELY,
        evidence=(
            *of_failure(facts, death, "what the parser said"),
            *of_settings(facts, "tool_call_parser", "reasoning_parser"),
        ),
        ruled_out_if=("every request fails, of any prompt",),
        advice=(
            "send the request again: another sample is mostly well formed; no restart is needed",
            "take a later SGLang and openai-harmony: the parsers have become more tolerant",
        ),
    )


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
