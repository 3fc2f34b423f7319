"""A request's schema or grammar raised where nobody caught it, and the scheduler died of it."""

from __future__ import annotations

import re

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import Death, LogFacts
from gemma4_triage.logs.rule import of_death, of_failure, of_settings

_FRAME = re.compile(
    r"\w*(?:grammar|xgrammar|outlines|llguidance)\w*\.py:|.* (?:compile_(?:json_schema|grammar|regex|structural_tag)|"
    r"accept_token|fill_vocab_mask|fill_next_token_bitmask|try_jump_forward)$"
)
_INNER = 4  # frames


def _explains(death: Death) -> bool:
    return death.usage is not None and any(_FRAME.match(frame) for frame in death.frames[-_INNER:])


def _tell(facts: LogFacts, death: Death) -> Finding:
    inner = death.frames[-_INNER:]
    compiling = any("compile" in frame for frame in inner)
    deep = "recursion" in death.message
    if compiling:
        what = "A request's schema or grammar does not compile, and nothing caught the error: it ended the scheduler"
    elif deep:
        what = "A request's grammar recurses deeper than its matcher allows, and the error was not caught"
    else:
        what = "The matcher of a request's grammar refused a token that had been sampled, and the error was not caught"
    return Finding(
        rule=RULE.id,
        cause=f"{what}.",
        confidence=Confidence.LIKELY,
        evidence=(*of_failure(facts, death), *of_settings(facts, "grammar_backend", "speculative_algorithm")),
        ruled_out_if=("it happens without response_format, json_schema, regex, ebnf or tools in the requests",),
        advice=(
            "take a later release: there such a request alone is aborted"
            if compiling or deep
            else "take a later release of SGLang and of the grammar's backend, or another --grammar-backend",
            "bound the recursion of schemas and max_tokens" if deep else "check schemas before they reach the server",
        ),
    )


RULE = of_death("grammar-request", "a request's grammar ended the scheduler", _explains, _tell)
