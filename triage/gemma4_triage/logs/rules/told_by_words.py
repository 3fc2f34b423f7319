"""Failures whose words leave one cause, though neither they nor their place in the code say what to change.

Each is an entry of known_issues/records/words/told_by_words.toml: what SGLang, or a library that it calls, says of
packages, arguments, a checkpoint or a request.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import of_wordings

_OF_FAILURES = of_wordings(
    "told-by-words",
    "its words leave one cause",
    "told_by_words.toml",
    Confidence.LIKELY,
    ruled_out_if=("an earlier line tells of another failure: this one may then follow from it",),
    settings=("attention_backend", "kv_cache_dtype", "lora_paths"),
    alarms=("answered-500",),
)


def _find(facts: LogFacts) -> Iterator[Finding]:
    """Yield what a process ended of, else what a request failed of that the server answered with a status of 500."""
    found = list(_OF_FAILURES.find(facts))
    if not found and any(alarm.kind == "answered-500" for alarm in facts.alarms):
        found = list(_OF_FAILURES.find(replace(facts, deaths=facts.errors, alarms=())))
    yield from found


RULE = replace(_OF_FAILURES, find=_find)
