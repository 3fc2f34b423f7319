"""The explicit list of rules over a log, and what they make of one."""

from __future__ import annotations

from collections.abc import Iterable

from gemma4_triage.finding import Finding, ranked
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import Rule
from gemma4_triage.logs.rules import (
    accept_length_drop,
    binding_pool,
    hang,
    hybrid_draft_pool,
    illegal_access,
    index_outside_tensor,
    known_issue,
    no_slot,
    other_crash,
    out_of_memory,
    pool_leak,
    prefix_cache_loss,
    probe_stopped,
    re_prefill_storm,
    retraction_thrash,
    stale_write_rows,
    throughput_collapse,
    unexplained_line,
    unmergeable_batch,
)

ENDINGS: tuple[Rule, ...] = (
    probe_stopped.RULE,
    stale_write_rows.RULE,
    hybrid_draft_pool.RULE,
    unmergeable_batch.RULE,
    pool_leak.RULE,
    illegal_access.RULE,
    index_outside_tensor.RULE,
    no_slot.RULE,
    out_of_memory.RULE,
    hang.RULE,
)
"""Of what a server died of, or would have."""

LOADS: tuple[Rule, ...] = (
    retraction_thrash.RULE,
    binding_pool.RULE,
    re_prefill_storm.RULE,
    prefix_cache_loss.RULE,
    accept_length_drop.RULE,
    throughput_collapse.RULE,
)
"""Of how it served."""


_LOAD_IDS = frozenset(rule.id for rule in LOADS)


def is_load(finding: Finding) -> bool:
    """Say whether it is about how a server served, and not about what ended it."""
    return finding.rule in _LOAD_IDS


def findings(facts: LogFacts) -> tuple[Finding, ...]:
    """Return findings on what ended the server, then on how it served; the most certain first in each part."""
    unexplained = [death for death in facts.deaths if not any(rule.explains(death) for rule in ENDINGS)]
    endings = [finding for rule in ENDINGS for finding in rule.find(facts)]
    endings += known_issue.beside(endings, facts)
    known = known_issue.explained(facts)
    unknown = [death for death in unexplained if (death.type_name, death.frame) not in known]
    endings += other_crash.find(facts, unknown)
    floor = unexplained_line.find(facts, _accounted_for(endings, facts))
    loads = [finding for rule in LOADS for finding in rule.find(facts)]
    return (*ranked([*endings, *floor]), *ranked(loads))


def _accounted_for(found: Iterable[Finding], facts: LogFacts) -> set[str]:
    """Return the kinds of alarms that the findings on ends account for, or that follow an end that is reported."""
    named = {finding.rule for finding in found}
    kinds = {kind for rule in (*ENDINGS, *LOADS) if rule.id in named for kind in rule.alarms}
    if not facts.deaths:
        return kinds
    first = min(death.place.line for death in facts.deaths)
    follow = {alarm.kind for alarm in facts.alarms if alarm.place.line >= first and facts.starts <= 1}
    return kinds | follow | {"sigquit", "child", "exception"}
