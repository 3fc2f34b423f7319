"""A request for embeddings at a server that generates, or one for texts at a server of embeddings."""

from __future__ import annotations

import re

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import at, exception_text, of_settings

NO_CHATS = (
    "this server has --is-embedding, and a chat or a completion was asked of it: /v1/embeddings, /classify or "
    "/v1/rerank are what it answers; for texts start it without --is-embedding"
)
_EMBEDS = (
    "start it with --is-embedding, and a model that is one for embeddings; one server answers either chats or "
    "embeddings"
)
_LATER = "a later release, which refuses a request of the other kind in words, or serves it"
_REQUEST = pattern(r"(?:Batch)?(?:Tokenized)?(Embedding|Generate)Req(?:Input)?$")


def of_another_kind(facts: LogFacts, error: Death, lacks: re.Match[str], rule: str) -> Finding | None:
    """Return that a request's own class lacks what the code for requests of the other kind reads; None if not so.

    Args:
        facts: the log.
        error: what the request failed of.
        lacks: the class and its attribute that is not there, as groups.
        rule: whose finding it is.
    """
    kind = _REQUEST.match(lacks[1])
    if kind is None:
        return None
    embeds = kind[1] == "Embedding"
    # A start that does not say so has it not.
    started = facts.settings.get("is_embedding", "False" if facts.arguments else "")
    apart = started == str(not embeds)
    if apart and embeds:
        why = "They asked a server for embeddings that was not started for them"
    elif apart:
        why = "They asked a server of embeddings for texts"
    else:
        why = "That is of a request of another kind than the server was started for, or a defect of this release, "
        why += "which forgot that kind"
    return Finding(
        rule=rule,
        cause=f"Requests failed, and the server went on: its code reads {lacks[2]}, which a request of class "
        f"{lacks[1]} does not have. {why}.",
        confidence=Confidence.LIKELY if apart else Confidence.POSSIBLE,
        evidence=(
            at(facts, error.place, exception_text(error), "what the request failed of"),
            *of_settings(facts, "is_embedding"),
        ),
        ruled_out_if=(
            "the model is a classifier, a reranker or a reward model by its architecture, which needs no argument to "
            "be one: then it is the release",
        )
        if embeds
        else (),
        advice=(
            *((_EMBEDS,) if embeds and started != "True" else ()),
            *((NO_CHATS,) if not embeds and apart else ()),
            _LATER,
        ),
    )
