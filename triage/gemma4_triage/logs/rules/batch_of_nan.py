"""A batch line has nan where a number belongs: what a scheduler counts of its drafts or its pool is none."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.batch_line import NAN_IN_BATCH
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import Rule, at, of_settings, on_rank

_OF_DRAFTS = re.compile(r"accept \w+: -?nan")


def _find(facts: LogFacts) -> Iterator[Finding]:
    said = facts.remarks.get(NAN_IN_BATCH)
    if said is None:
        return
    drafts = _OF_DRAFTS.search(said.text) is not None
    what = "the length of accepted drafts" if drafts else "the usage of its pool"
    yield Finding(
        rule=RULE.id,
        cause=f"Unknown cause: batch lines{on_rank(said.rank)} give {what} as nan. A sum or a count behind it is no "
        "number, and answers of these steps are not to be trusted until they are looked at.",
        confidence=Confidence.POSSIBLE,
        evidence=(
            at(facts, said.place, said.text, "the first such line"),
            *of_settings(facts, "speculative_algorithm", "attention_backend", "kv_cache_dtype"),
        ),
        ruled_out_if=("the same prompts at temperature 0 are answered alike by a server without drafts",),
        advice=(
            *(("once without --speculative-algorithm: if answers are then right, it is the draft",) if drafts else ()),
            "once with --enable-nan-detection, which says whether logits are NaN, and of which rank first",
            "a later release, if answers are right: then only the line is wrong",
        ),
    )


RULE = Rule("batch-of-nan", "a batch line has nan where a number belongs", _find)
