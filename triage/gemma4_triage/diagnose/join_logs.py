"""Findings of logs beside those of dumps: of one cause they become one, with both kinds of evidence.

| a finding of a log                 | becomes evidence of                                                        |
|------------------------------------|----------------------------------------------------------------------------|
| names a dump that is here          | the first finding that rests on that dump, or on the same violation again  |
| is the very cause (`Rule.in_logs`) | that cause, which is then as certain as the more certain of the two        |
| is what a cause leads to           | the first such cause; that stays as certain as it is, since others lead    |
| (`Rule.leads_to`)                  | there too                                                                  |
| anything else                      | nothing: it stays a finding. What several logs say alike is one finding    |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gemma4_triage.diagnose.catalog import RULES
from gemma4_triage.diagnose.evidence import resting_on
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.finding import Finding, more_certain

_BY_ID = {rule.id: rule for rule in RULES}


def join_logs(found: Sequence[Finding], from_logs: Iterable[Finding], incident: Incident) -> list[Finding]:
    """Return all findings, with what only logs say first.

    Those in `found` are of dumps, guard manifests and ledgers, in the order in which a log's finding looks for its
    cause.
    """
    grown = list(found)
    alone: dict[tuple[str, str], Finding] = {}
    for theirs in from_logs:
        at = _cause_of(theirs, grown, incident)
        if at is not None:
            grown[at] = _both(grown[at], theirs)
        elif (known := alone.get((theirs.rule, theirs.cause))) is not None:
            alone[theirs.rule, theirs.cause] = _with_evidence(known, theirs)
        else:
            alone[theirs.rule, theirs.cause] = theirs
    return [*alone.values(), *grown]


def faults_of(rule: str) -> tuple[str, ...]:
    """Return the faults that make a finding of this rule, of dumps or of logs."""
    if rule in _BY_ID:
        return _BY_ID[rule].injected_by
    return tuple(fault for one in RULES if rule in (*one.in_logs, *one.leads_to) for fault in one.injected_by)


def _cause_of(theirs: Finding, found: Sequence[Finding], incident: Incident) -> int | None:
    named = [dump for piece in theirs.evidence if (dump := incident.dump(str(piece.value))) is not None]
    tests = (
        lambda one: any(incident.is_again(dump, resting_on([one], incident)) for dump in named),
        lambda one: theirs.rule in _BY_ID[one.rule].in_logs,
        lambda one: theirs.rule in _BY_ID[one.rule].leads_to,
    )
    return next((at for test in tests for at, one in enumerate(found) if test(one)), None)


def _both(cause: Finding, theirs: Finding) -> Finding:
    same = theirs.rule in _BY_ID[cause.rule].in_logs
    confidence = more_certain(cause.confidence, theirs.confidence) if same else cause.confidence
    return _with_evidence(cause, theirs).model_copy(update={"confidence": confidence})


def _with_evidence(finding: Finding, other: Finding) -> Finding:
    return finding.model_copy(update={"evidence": (*finding.evidence, *other.evidence)})
