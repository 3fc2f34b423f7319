"""A request with a schema or a grammar waits in a queue of its own, which nothing empties, while others are served."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts, Remark
from gemma4_triage.logs.rule import Rule, of_settings, remarked

_VALUE = re.compile(r"\}\s+(\d+(?:\.\d+)?)")


def _find(facts: LogFacts) -> Iterator[Finding]:
    waiting, running = _value(facts.remarks.get("grammar_gauge")), _value(facts.remarks.get("running_gauge"))
    if not waiting or running or facts.deaths:
        return
    stages = facts.settings.get("pp_size", "1")
    staged = stages.isdecimal() and int(stages) > 1
    why = (
        " With stages (--pp-size) the scheduler's loop has its own way of taking requests in, which in some releases "
        "never looks at that queue: each such request waits for ever, and all others are served."
        if staged
        else " Either it compiles for minutes, or the loop never looks at that queue again."
    )
    yield Finding(
        rule=RULE.id,
        cause=f"{waiting:.0f} request(s) with a schema or a grammar wait in the queue of grammars while nothing runs: "
        f"the form of the answer was given to be compiled, and nobody takes the request on.{why}",
        confidence=Confidence.LIKELY if staged and running is not None else Confidence.POSSIBLE,
        evidence=(
            *remarked(facts, "grammar_gauge", "how many wait there"),
            *remarked(facts, "running_gauge", "how many run"),
            *remarked(facts, "client_waited", "what the client saw"),
            *of_settings(facts, "pp_size", "grammar_backend", "disaggregation_mode"),
        ),
        ruled_out_if=("the same request is answered after a while: its grammar takes that long to compile",),
        advice=(
            *(
                (
                    "a later release, whose loop of stages takes such requests on; until then --pp-size 1 (--tp over "
                    "those GPUs) for requests with a schema, or send them without response_format, regex and forced "
                    "tools",
                )
                if staged
                else ()
            ),
            "a schema that is simpler, and another --grammar-backend (llguidance compiles as it goes): if that "
            "answers, the compilation is what takes so long",
            *(() if staged else ("py-spy dump --pid of the scheduler while it waits; then a later release",)),
        ),
    )


def _value(gauge: Remark | None) -> float | None:
    """Return the value in a line of /metrics; None if it has none."""
    found = None if gauge is None else _VALUE.search(gauge.text)
    return None if found is None else float(found[1])


RULE = Rule("grammar-waits", "a request waits for its grammar, and nothing takes it on", _find)
