"""A chat template could not be found, or could not write the messages of a request."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import of_death, of_failure, of_settings
from gemma4_triage.logs.rules.refused_by_check import CALL

_LACKS = pattern(
    r"(?i)chat[_ ]template .{0,200}(?:is not a built-in|not found|does not exist)|no chat template|"
    r"chat_template is not set|does not have a chat template"
)
_NONE = pattern(r"(?i)chat_template is not set|does not have a chat template|no chat template")
_RENDERS = pattern(
    r"(?:jinja2\.|\b)(?:exceptions\.)?(?:TemplateError|UndefinedError|TemplateSyntaxError|TemplateRuntimeError)\b|"
    r"Object of type Undefined is not JSON serializable|roles must alternate|Failed to render chat template"
)
_ROLES = pattern(r"(?i)system role (?:is )?not supported|roles must alternate[\w /]*")
_NOT_FIRST = pattern(
    r"(?i)[^.:]{0,40}\bsystem (?:message|prompt|role)s?\b (?:must|should|has to|can only|may only|is only|only)\b"
    r"[^.]{0,60}\b(?:beginning|first|start|begin)\b"
)
_FRAME = pattern(r".* (?:apply_chat_template|_apply_jinja_template|render_jinja_template|_compile_jinja_template)$")


_OF_A_TOOL = pattern(r"dict object' has no attribute '(name|function|parameters|description)'")
_IN_A_CALL = pattern(r"tool_calls?\b|message")


def _explains(death: Death) -> bool:
    said = f"{death.type_name}: {death.message}"
    if "NoneType" in death.message and ".tokenizer." in death.statement:
        return False
    return bool(_LACKS.search(said) or _RENDERS.search(said)) or any(map(_FRAME.match, death.frames))


def _tell(facts: LogFacts, death: Death) -> Finding:
    if _NONE.search(death.message):
        cause = (
            "The checkpoint has no chat template, and none was given: it is no chat model, or its tokenizer's files "
        )
        cause += "are older than it. Only chat requests fail."
        advice = (
            "serve the instruction-tuned checkpoint (-it, -Instruct), or give --chat-template",
            "requests to /v1/completions or /generate need no template",
        )
    elif _LACKS.search(death.message):
        cause = (
            "The chat template that was asked for is not there: neither a file that the server sees nor a built-in one."
        )
        advice = (
            "--chat-template with the whole path of a file inside the container (early releases take .json alone), or "
            "without it: the checkpoint's own one",
        )
    elif (call := CALL.search(death.message)) is not None:
        cause = f"{call[1]}, of this model's tokenizer, does not take an argument that this release passes with every "
        cause += "chat request: no request is at fault, and none is answered."
        advice = (
            "another release of SGLang, or the tokenizer class that it is made for (tokenizer_config.json, "
            "--tokenizer-path, --tokenizer-mode)",
            "until then /generate or /v1/completions with a prompt that the client wrote: they need no template",
        )
    elif (first := _NOT_FIRST.search(death.message)) is not None:
        cause = (
            f"The chat template refused a request in which a system message is not the first one: {first[0].strip()}. "
            "The client sent a second one within the conversation, as agents do. Only such requests fail; weights, "
            "parsers and arguments are right."
        )
        advice = (
            "join all system messages into the first one: at the client (a later or earlier release of the agent), or "
            "in a proxy or gateway before the server",
            "or --chat-template with a copy of this model's template that writes later system messages as a user's, in "
            "place of its raise_exception",
        )
    elif (roles := _ROLES.search(death.message)) is not None:
        cause = f"The chat template refused the roles of a request's messages: {roles[0]}. Only such requests fail."
        advice = (
            "put system text before the first user message and join messages of one role: Gemma-2's and Gemma-3's "
            "templates take user and assistant in turn",
            "or --chat-template with one that takes such roles",
        )
    elif (field := _OF_A_TOOL.search(death.message)) is not None and not _IN_A_CALL.search(death.statement):
        cause = (
            f"The chat template reads a field {field[1]}, as a definition of a tool has, where the server's "
            "release hands tools on in another form (the whole OpenAI object, or its function alone). Only such "
            "requests fail, those with tools, of any client; weights are right."
        )
        advice = (
            "a later release of SGLang, which hands tools on as this model's template reads them, with the model's own "
            "--tool-call-parser",
            "or --chat-template with one that reads them as this release hands them on (tool.function.name against "
            "tool.name): the checkpoint's newest, or the release's own in examples/chat_template",
            "requests without tools are answered meanwhile; a tool message or a call without a name in the messages "
            "looks alike: send that request once with its tools alone",
        )
    else:
        cause = (
            "The chat template could not write the messages of a request: a role, a tool or a field in it is not as "
        )
        cause += "the template expects. Only such requests fail."
        advice = (
            *((_OF_A_PREFIX,) if "has no element 0" in death.message else ()),
            "send that request alone, once without tools: a tool message without a call before it, content as a "
            "list, or arguments as text where the template wants an object are the usual ones",
            "the template has to be this model's and this release's: take the checkpoint's newest one "
            "(chat_template.jinja), or --chat-template",
            "a later release answers such a request with 400 and the template's own words",
        )
    return Finding(
        rule=RULE.id,
        cause=cause,
        confidence=Confidence.LIKELY,
        evidence=(
            *of_failure(facts, death, "what the template said"),
            *of_settings(facts, "chat_template", "model_path"),
        ),
        ruled_out_if=("transformers' apply_chat_template fails alike on no request at all",),
        advice=advice,
    )


_OF_A_PREFIX = (
    "a user message in every request: an assistant's message that stands last is taken off as the beginning of the "
    "answer, and where it was the only one no message is left for the template; a later release looks at that first"
)


def _find(facts: LogFacts) -> Iterator[Finding]:
    death = next(filter(_explains, (*facts.failures, *facts.errors)), None)
    if death is not None:
        yield _tell(facts, death)


_OF_DEATH = of_death("chat-template", "a chat template is missing or could not write a request", _explains, _tell)
RULE = replace(_OF_DEATH, find=_find, alarms=frozenset({"answered-500"}))
