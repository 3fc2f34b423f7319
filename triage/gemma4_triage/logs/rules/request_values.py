"""A request asked for what this server, or this release, cannot take, and nobody refused it: a process died of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import Rule, of_failure, of_settings, remarked
from gemma4_triage.logs.rules import refused_for_room

_NONE = pattern(r"NoneType")
_TOKENIZER = pattern(r"\btokenizer\.\w+|\btokenizer\b.{0,20}\bNone")
_OF_A_TOKENIZER = pattern(
    r"'NoneType' object has no attribute '(?:(?:batch_)?(?:de|en)code(?:_plus)?|(?:eos|bos|pad)_token\w*|"
    r"additional_stop_token_ids|apply_chat_template|convert_\w+|vocab_size|all_special_\w+)'"
)
_LISTS_IDS = pattern(r"(?:min_new_tokens|\w*penal\w*|sampling_batch_info|logit_bias)\.py:")
_PARAMETER = pattern(r"\bsampling_params\.(\w+)")
_SESSION = pattern(r"session\w*\.py:")
_ADAPTERS = pattern(r"lora_(?:manager|registry)\.py:\S* (?:prepare_lora_batch|fetch_new_loras|validate_lora_batch)$")
_NAMED = pattern(r"""["']?lora_path["']?\s*[:=]\s*["']([^"']{1,200})["']""")
_SPOKEN = {"stop_strs": "stop", "stop_str_max_len": "stop", "stop_token_ids": "stop_token_ids"}


@dataclass(frozen=True)
class _Told:
    """What a request asked for: the cause, how sure it is, what to do, and the line of the request."""

    cause: str
    confidence: Confidence
    advice: tuple[str, ...]
    shown: str = ""


def _of_no_tokenizer(facts: LogFacts, death: Death) -> _Told | None:
    known = _TOKENIZER.search(death.statement) or _OF_A_TOKENIZER.search(death.message)
    asked = facts.arguments.get("skip_tokenizer_init", facts.settings.get("skip_tokenizer_init"))
    if not known or not _NONE.search(death.message) or asked != "True":
        return None
    return _Told(
        "The server has no tokenizer (--skip-tokenizer-init), and a request asks for what needs one: stop strings, "
        "min_new_tokens, a grammar or text.",
        Confidence.LIKELY,
        (
            "requests of token ids alone: stop_token_ids in place of stop (strings), no min_new_tokens, regex or "
            "schema",
            "or leave out --skip-tokenizer-init; a later release refuses such a request and goes on",
        ),
    )


def _of_null_ids(facts: LogFacts, death: Death) -> _Told | None:
    if not _NONE.search(death.message) or not any(map(_LISTS_IDS.match, death.frames[-2:])):
        return None
    shown = "null_ids" in facts.remarks
    return _Told(
        "A request's sampling parameters hold null where a token id is meant, mostly stop_token_ids: [null], and this "
        "release hands it on to the scheduler, which dies of it"
        + ("." if shown else "; else the tokenizer names no end of a text (eos_token_id null)."),
        Confidence.LIKELY,
        (
            "mend the client, or refuse it in front of the server: no null within stop_token_ids and logit_bias; a "
            "client without one sends no list at all",
            "--log-requests --log-requests-level 1 shows whose request it was; a later release drops them (SGLang "
            "22175)",
            *(() if shown else ("if no request has one: eos_token_id in tokenizer_config.json and config.json",)),
        ),
        "null_ids",
    )


def _of_a_parameter(facts: LogFacts, death: Death) -> _Told | None:
    found = _PARAMETER.search(death.statement)
    if not _NONE.search(death.message) or found is None:
        return None
    if refused_for_room.ended_right_behind(facts):
        return _Told(
            f"A request was refused for its length, and this release dies of what a refused request lacks ({found[1]}):"
            " what was to be an answer of status 400 ended the scheduler.",
            Confidence.POSSIBLE,
            (
                "no request longer than the server has room for: a limit in front of it, until the pool is larger",
                f"{_SPOKEN.get(found[1], found[1])} in every request, and a later release, which answers what it "
                "refuses and goes on",
            ),
        )
    grpc = facts.arguments.get("grpc_mode") == "True"
    ways = (
        "gRPC (--grpc-mode)" if grpc else "gRPC, a router, an Engine in a program, another entry than the HTTP server"
    )
    return _Told(
        f"A request came to the scheduler without {found[1]}, which its way in has to fill: {ways} may not set what a "
        "request leaves out, as the HTTP server does.",
        Confidence.LIKELY if grpc else Confidence.POSSIBLE,
        (
            f"the same request to the HTTP server{' (without --grpc-mode)' if grpc else ''}: if it is answered, that "
            "way in is at fault, and a later release mends it",
            f"until then give {_SPOKEN.get(found[1], found[1])} in every request",
        ),
    )


def _of_a_session(facts: LogFacts, death: Death) -> _Told | None:
    if not _NONE.search(death.message) or not any(map(_SESSION.match, death.frames[-2:])):
        return None
    shown = "asked_embeds" in facts.remarks
    return _Told(
        "A request within a session (/open_session, session_params) came without the token ids that a session keeps"
        + (": it brings embeddings (input_embeds) instead." if shown else ", as one with input_embeds or images does."),
        Confidence.LIKELY if shown else Confidence.POSSIBLE,
        (
            "send requests with input_embeds outside of sessions (without session_params), or text or input_ids within "
            "one",
            "a later release, which refuses such a request and goes on",
        ),
        "asked_embeds",
    )


def _of_an_adapter(facts: LogFacts, death: Death) -> _Told | None:
    if death.type_name not in ("AssertionError", "KeyError") or not any(map(_ADAPTERS.match, death.frames[-2:])):
        return None
    asked = facts.remarks.get("asked_adapter")
    named = _NAMED.search(asked.text) if asked is not None else None
    given = facts.arguments.get("lora_paths", "")
    missing = named is not None and bool(given) and named[1] not in given
    if named is not None and given and not missing:
        return None
    drafts = facts.settings.get("speculative_algorithm", "None") != "None"
    if not missing and (drafts or death.message or not facts.served):
        return None
    return _Told(
        f"A request names a LoRA adapter that was never loaded{f', {named[1]},' if missing and named else ''} and this "
        "release does not refuse it: its scheduler dies."
        if missing
        else "A batch asks for LoRA adapters that the server has not loaded, or for more than it may hold at once "
        "(--max-loras-per-batch), which this release does not refuse.",
        Confidence.LIKELY if missing else Confidence.POSSIBLE,
        (
            "load it (--lora-paths, POST /load_lora_adapter) under the name that requests use, or have them name one "
            "that is loaded",
            "a later release, which answers such a request with 400",
        ),
        "asked_adapter" if missing else "",
    )


_KINDS = (_of_no_tokenizer, _of_null_ids, _of_a_parameter, _of_a_session, _of_an_adapter)


def _explains(death: Death) -> bool:
    none = _NONE.search(death.message) is not None
    return (
        none
        and bool(
            _TOKENIZER.search(death.statement)
            or _OF_A_TOKENIZER.search(death.message)
            or _PARAMETER.search(death.statement)
            or any(map(_LISTS_IDS.match, death.frames[-2:]))
            or any(map(_SESSION.match, death.frames[-2:]))
        )
    ) or any(map(_ADAPTERS.match, death.frames[-2:]))


def _find(facts: LogFacts) -> Iterator[Finding]:
    for death in facts.deaths:
        told = next(filter(None, (kind(facts, death) for kind in _KINDS)), None)
        if told is None:
            continue
        yield Finding(
            rule=RULE.id,
            cause=told.cause,
            confidence=told.confidence,
            evidence=(
                *of_failure(facts, death),
                *(remarked(facts, told.shown, "what a request asked for") if told.shown else ()),
                *of_settings(facts, "skip_tokenizer_init", "lora_paths", "grpc_mode"),
            ),
            ruled_out_if=("the same request, sent again alone to a fresh server, is answered",),
            advice=told.advice,
        )
        return


RULE = Rule("request-values", "a request asked for what the server cannot take", _find, _explains)
