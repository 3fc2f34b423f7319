"""A request's schema or grammar raised where nobody caught it, and the scheduler died of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Alarm, Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import Rule, at, of_failure, of_settings, remarked, words_of

_FRAME = pattern(
    r"\w*(?:grammar|xgrammar|outlines|llguidance)\w*\.py:|.* (?:compile_(?:json_schema|grammar|regex|structural_tag)|"
    r"accept_token|\w*vocab_mask|\w*token_bitmask\w*|try_jump_forward)$"
)
_SPECULATIVE = pattern(r"(?:eagle|spec|mtp)\w*\.py:")
_OF_A_KERNEL = pattern(
    r"device-side assert|illegal memory access|launch failure|illegal instruction|misaligned address"
)
_INNER = 4  # frames


_OF_A_MATCHER = pattern(r"^ValueError: Tokens not accepted\b")
"""How SGLang itself says that a grammar's matcher refused a token, whatever was left out of the traceback."""
_NO_SCHEMA = pattern(
    r"validation errors? for (?:JSONSchemaFormat|StructuralTag\w*|TagFormat)\b(?:.{0,300}\bNone)?|"
    r"JSONSchemaFormat gets None"
)
"""How xgrammar says that a tag has no schema."""
_WITH_A_SCHEMA = (
    '{"type": "object", "properties": {}}, or {}, in place of null as the parameters of a tool, at the client or a '
    "proxy "
    "before the server: the tag that is made of such a tool has no schema, which xgrammar refuses (SGLang 13068); "
    "strict off, or tool_choice auto, for such tools"
)
_OF_A_START = (" __init__", " <module>", " create_grammar_backend", " init_tokenizer")
_MASK = pattern(r"(?i)logits and bitmask|bitmask.{0,60}(?:batch size|shape)|vocab_?mask.{0,60}(?:shape|size)")


def _explains(death: Death) -> bool:
    # What a kernel did before is noticed where the mask is made.
    if _OF_A_KERNEL.search(death.message):
        return False
    if _OF_A_MATCHER.search(words_of(death)) or _NO_SCHEMA.search(words_of(death)):
        return True
    serving = death.usage is not None or not any(frame.endswith(_OF_A_START) for frame in death.frames)
    return serving and any(_FRAME.match(frame) for frame in death.frames[-_INNER:])


def _tell(facts: LogFacts, death: Death) -> Finding:
    inner = death.frames[-_INNER:]
    compiling = any("compile" in frame for frame in inner) or _NO_SCHEMA.search(words_of(death)) is not None
    deep = "recursion" in death.message
    drafts = not compiling and _drafts(facts, death)
    if _MASK.search(death.message) or (death.type_name == "IndexError" and death.frame.endswith("vocab_mask")):
        return _mask(facts, death)
    if (form := _NO_SUCH_FORM.search(death.message)) is not None:
        return _without_form(facts, death, form[1])
    if compiling:
        what = "A request's schema or grammar does not compile, and nothing caught the error: it ended the scheduler"
    elif deep:
        what = "A request's grammar recurses deeper than its matcher allows, and the error was not caught"
    elif launched := _not_launched(death):
        what = f"The kernel that applies the mask of structured output could not be {launched}: its backend does not "
        what += "fit this GPU or this Triton. No schema is at fault"
    elif death.type_name == "TypeError":
        what = "SGLang hands the backend of structured output another argument than it takes"
        what += ", where drafts are verified" if drafts else ""
        what += ": two releases that do not fit, or a path that this one does not serve. No schema is at fault"
    elif drafts:
        what = (
            "Drafts were fed to a request's grammar past its end: its matcher refused a token, and the error was not "
        )
        what += "caught. The schema is not at fault"
    else:
        what = "The matcher of a request's grammar refused a token that had been sampled, and the error was not caught"
    return Finding(
        rule=RULE.id,
        cause=f"{what}.",
        confidence=Confidence.LIKELY,
        evidence=(*of_failure(facts, death), *of_settings(facts, "grammar_backend", "speculative_algorithm")),
        ruled_out_if=("it happens without response_format, json_schema, regex, ebnf or tools in the requests",),
        advice=(
            *((_WITH_A_SCHEMA,) if _NO_SCHEMA.search(words_of(death)) else ()),
            "take a later release: there such a request alone is aborted"
            if compiling or deep
            else "take a later release of SGLang and of the grammar's backend, or another --grammar-backend",
            "until then --grammar-backend outlines or llguidance, or requests without response_format"
            if _not_launched(death)
            else "until then serve requests with a grammar without --speculative-algorithm"
            if drafts
            else "bound the recursion of schemas and max_tokens"
            if deep
            else "check schemas before they reach the server",
        ),
    )


_NO_SUCH_FORM = pattern(r"Invalid key_type: ['\"]?(\w+)")


def _without_form(facts: LogFacts, death: Death, form: str) -> Finding:
    return Finding(
        rule=RULE.id,
        cause=f"This backend of structured output knows no {form}, which a request asked for, and nothing caught that.",
        confidence=Confidence.LIKELY,
        evidence=(*of_failure(facts, death), *of_settings(facts, "grammar_backend")),
        ruled_out_if=("the server has --grammar-backend xgrammar",),
        advice=(
            "--grammar-backend xgrammar, which knows every form (json_schema, regex, ebnf, structural_tag)",
            f"or requests without {form}: tools that are forced and strict functions ask for structural_tag; then a "
            "later release, which refuses such a request alone",
        ),
    )


def _not_launched(death: Death) -> str:
    """Return "launched" or "compiled" if a kernel was at fault, and not what a grammar says; else ""."""
    if re.search(r"Triton Error|CUDA error|HIP error|no kernel image", death.message):
        return "launched"
    return "compiled" if death.type_name in ("CompilationError", "OutOfResources", "PTXASError") else ""


def _mask(facts: LogFacts, death: Death) -> Finding:
    drafts = _drafts(facts, death)
    why = (
        "drafts ask for a row of logits per draft token, and this release has a mask of one row per request: it does "
        "not serve structured output together with drafts"
        if drafts
        else "rows were added to or taken from the batch between both"
    )
    return Finding(
        rule=RULE.id,
        cause=f"Logits and the mask of structured output differ in their number of rows: {why}. No schema is at fault.",
        confidence=Confidence.LIKELY if drafts else Confidence.POSSIBLE,
        evidence=(*of_failure(facts, death), *of_settings(facts, "grammar_backend", "speculative_algorithm")),
        ruled_out_if=("it happens without response_format, json_schema, regex, ebnf or tools in the requests",),
        advice=(
            "a later release, which serves grammars with drafts"
            if drafts
            else "a later release; until then requests without regex, schema or tools",
            "until then requests with a schema or tools at a server without --speculative-algorithm"
            if drafts
            else "once with --disable-overlap-schedule",
        ),
    )


def _drafts(facts: LogFacts, death: Death) -> bool:
    """Say whether the server drafts, by its arguments, its batch lines or the frames of the failure."""
    return (
        facts.settings.get("speculative_algorithm", "None") != "None"
        or any(rank.accept_length is not None for rank in facts.ranks)
        or any(_SPECULATIVE.search(frame) for frame in death.frames)
    )


def _in_native_code(facts: LogFacts) -> Iterator[Finding]:
    """Yield what a process says that ended in native code, with a grammar's backend on its stack."""
    alarm = next((alarm for alarm in facts.alarms if alarm.kind == "signalled"), None)
    frame = next((frame for frame in alarm.more if _FRAME.match(frame)), "") if alarm else ""
    if alarm is None or not frame:
        return
    yield Finding(
        rule=RULE.id,
        cause=f"The backend of structured output ended the process in native code, in {frame}: a request's schema or "
        "grammar brought it there, such as one that refers to itself.",
        confidence=Confidence.LIKELY,
        evidence=(
            at(facts, alarm.place, alarm.text, f"the end, with {frame} on its stack"),
            *of_settings(facts, "grammar_backend"),
        ),
        ruled_out_if=("it happens without response_format, json_schema, regex, ebnf or tools in the requests",),
        advice=(
            "a later release of SGLang and of the grammar's backend, or another --grammar-backend",
            "refuse schemas that refer to themselves before they reach the server",
        ),
    )


def _find(facts: LogFacts) -> Iterator[Finding]:
    death = next(filter(_explains, facts.failures), None)
    refused = next((alarm for alarm in facts.alarms if alarm.kind == "grammar"), None)
    if death is not None:
        yield _tell(facts, death)
    elif refused is not None:
        yield _refused(facts, refused)
    else:
        yield from _in_native_code(facts)


_HOLDS_UP = "Only such requests fail, but a rank that leaves a step out so may hold up the others."


def _refused(facts: LogFacts, alarm: Alarm) -> Finding:
    """Return what SGLang says where it caught that a matcher refused a token: it aborts that request alone."""
    if "advance FSM" in alarm.text:
        return _refused_in_vllm(facts, alarm)
    drafts = facts.settings.get("speculative_algorithm", "None") != "None" or any(
        rank.accept_length is not None for rank in facts.ranks
    )
    split = facts.settings.get("disaggregation_mode", "null") not in ("null", "None")
    what = "drafts had been accepted that" if drafts else "a token had been sampled that"
    lost = ", as steps overlap" if drafts and facts.settings.get("disable_overlap_schedule") != "True" else ""
    lost += " on a server of its own for decode" if split else ""
    ranks = facts.settings.get("enable_dp_attention") == "True"
    return Finding(
        rule=RULE.id,
        cause=f"Requests with structured output were aborted: {what} their grammar refuses{lost}. "
        f"{_HOLDS_UP if ranks else 'Only such requests fail.'} No schema is at fault.",
        confidence=Confidence.LIKELY if drafts and not facts.deaths else Confidence.POSSIBLE,
        evidence=(
            at(facts, alarm.place, alarm.text, f"what the server said, {alarm.count} times"),
            *of_settings(
                facts, "grammar_backend", "speculative_algorithm", "disaggregation_mode", "enable_dp_attention"
            ),
        ),
        ruled_out_if=("it happens to requests without response_format, json_schema, regex, ebnf or tools",),
        advice=(
            *(("serve requests with a grammar without --speculative-algorithm",) if drafts else ()),
            "once with --disable-overlap-schedule",
            "a later release of SGLang and of the grammar's backend, or another --grammar-backend",
        ),
    )


def _refused_in_vllm(facts: LogFacts, alarm: Alarm) -> Finding:
    """Return what vLLM says where its grammar refuses a token that the request has taken already."""
    drafts = "speculative_config" in facts.arguments or "vllm_drafts" in facts.remarks
    thinks = "reasoning_parser" in facts.arguments
    how = " The server drafts: tokens of a draft are taken in the step in which the grammar begins or ends" * drafts
    how += " (behind the end of thoughts, as a reasoning parser has it)" * (drafts and thinks)
    how += ", and nothing held them against it." * drafts
    ways = (
        *(("without --speculative-config",) if drafts else ()),
        *(("with thinking off (enable_thinking false in chat_template_kwargs)",) if thinks else ()),
    )
    return Finding(
        rule=RULE.id,
        cause="A request with structured output took a token that its grammar refuses, so that its answer may hold "
        f"text outside of the schema.{how} Neither schema nor prompt is at fault.",
        confidence=Confidence.LIKELY if drafts else Confidence.POSSIBLE,
        evidence=(
            at(facts, alarm.place, alarm.text, f"what the server said, {alarm.count} times"),
            *remarked(facts, "vllm_drafts", "its drafts"),
            *remarked(facts, "not_json", "an answer that does not begin as JSON"),
        ),
        ruled_out_if=("it happens to requests without response_format, structured outputs or tools",),
        advice=(
            *((f"serve requests with a schema {', or '.join(ways)}",) if ways else ()),
            *((_FORCED,) if not ways else ()),
            "a later release of vLLM; until then hold the JSON against its schema at the client, and ask again",
            "another library once: --structured-outputs-config.backend guidance (earlier --guided-decoding-backend)",
        ),
    )


_FORCED = (
    "tool_choice auto in place of required or a named tool, or thinking off for such requests (chat_template_kwargs "
    "enable_thinking false): a grammar that begins with the first token refuses the thoughts and the mark of their end"
)
RULE = Rule(
    "grammar-request",
    "a request's grammar ended the scheduler or the request",
    _find,
    _explains,
    frozenset({"signalled", "grammar", "answered-500"}),
)
