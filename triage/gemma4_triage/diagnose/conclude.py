"""From an incident to its findings: every rule asked, consequences dropped, the rest ranked.

1. Every rule that is no fallback sees the whole incident.
2. A finding is dropped if one that is at least as certain, and began no later, explains its rule. Its dumps become
   evidence of that one.
3. A cause that is an injected fault says so. A fault that no finding accounts for stays a finding of its own.
4. A cause whose fix was attached is no longer certain: the fix did not prevent it.
5. Fallbacks, in the catalog's order and as often as they find something, see the dumps that nothing so far has
   explained, repetitions left out. After them every dump is in a finding.
6. `ranked` puts the most certain first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gemma4_triage.diagnose.catalog import RULES
from gemma4_triage.diagnose.evidence import guarded, logged, said
from gemma4_triage.diagnose.finding import Confidence, Finding, ranked
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.rule import Rule
from gemma4_triage.diagnose.rules import injected_fault

_CERTAINTY = (Confidence.CERTAIN, Confidence.LIKELY, Confidence.POSSIBLE)
_BY_ID = {rule.id: rule for rule in RULES}


def conclude(incident: Incident, from_logs: Iterable[Finding] = ()) -> tuple[Finding, ...]:
    """The findings about an incident, the most certain first; none if nothing is wrong.

    from_logs: findings that an analysis of the server's log made; they are ranked with the others.
    """
    asked = [finding for rule in RULES if not rule.fallback and (finding := rule.find(incident)) is not None]
    found = list(_without_consequences(asked, incident))
    found = [_hold_against_fix(finding, incident) for finding in _account_for_faults(found)]
    for rule in RULES:
        while rule.fallback and (finding := rule.find(incident.without(_dumps_of(found, incident)))) is not None:
            found.append(finding)
    return ranked([*_with_log(found, incident), *from_logs])


def _without_consequences(asked: list[Finding], incident: Incident) -> Iterator[Finding]:
    for finding in asked:
        if any(_explains(other, finding, incident) for other in asked):
            continue
        known = {piece.source for piece in finding.evidence}
        later = {
            piece.source: dump
            for other in asked
            if _explains(finding, other, incident)
            for piece in other.evidence
            if piece.source not in known and (dump := incident.dump(piece.source)) is not None
        }
        evidence = (said(dump, "verdict", "a consequence") for dump in later.values())
        yield finding.model_copy(update={"evidence": (*finding.evidence, *evidence)})


def _explains(cause: Finding, finding: Finding, incident: Incident) -> bool:
    return (
        finding.rule in _BY_ID[cause.rule].explains
        and _CERTAINTY.index(cause.confidence) <= _CERTAINTY.index(finding.confidence)
        and _began(cause, incident) <= _began(finding, incident)
    )


def _began(finding: Finding, incident: Incident) -> float:
    """When the first dump that it rests on was written; a guard manifest comes before all dumps."""
    dumps = [incident.dump(evidence.source) for evidence in finding.evidence if not _is_guard(evidence.field)]
    return min((dump.manifest.created_utc.timestamp() for dump in dumps if dump is not None), default=0.0)


def _is_guard(field: str) -> bool:
    return field.startswith("guards.")


def _account_for_faults(found: list[Finding]) -> Iterator[Finding]:
    """Move each injected fault from its own finding to the cause that it is."""
    injected = next((finding for finding in found if finding.rule == injected_fault.ID), None)
    open_faults = {} if injected is None else {str(piece.value): piece for piece in injected.evidence}
    for finding in found:
        if finding is injected:
            continue
        mine = [open_faults.pop(fault) for fault in _rule_of(finding).injected_by if fault in open_faults]
        if not mine:
            yield finding
            continue
        named = ", ".join(str(piece.value) for piece in mine)
        yield finding.model_copy(
            update={
                "cause": f"{finding.cause.removesuffix('.')} (injected on request: {named}).",
                "evidence": (*finding.evidence, *mine),
            }
        )
    if injected is not None and open_faults:
        yield injected.model_copy(update={"evidence": tuple(open_faults.values())})


def _hold_against_fix(finding: Finding, incident: Incident) -> Finding:
    attached = [(guards, guards.attached(finding.fix)) for guards in incident.guards if finding.fix]
    held = next(((guards, field) for guards, field in attached if field is not None), None)
    if held is None:
        return finding
    evidence = guarded(*held, f"the fix {finding.fix} was attached, and this happened all the same")
    confidence = Confidence.LIKELY if finding.confidence is Confidence.CERTAIN else finding.confidence
    return finding.model_copy(update={"evidence": (*finding.evidence, evidence), "confidence": confidence})


def _dumps_of(found: Iterable[Finding], incident: Incident) -> frozenset[str]:
    """Ids of the dumps that findings rest on. What stands in a dump's guard manifest says nothing about that dump."""
    named = {evidence.source for finding in found for evidence in finding.evidence if not _is_guard(evidence.field)}
    return frozenset(name for name in named if incident.dump(name) is not None)


def _with_log(found: list[Finding], incident: Incident) -> list[Finding]:
    """The log's crash lines go to the first cause as evidence, unless a finding holds them already."""
    causes = [finding for finding in ranked(found) if _rule_of(finding).id != injected_fault.ID]
    if not incident.log or not incident.dumps or not causes:
        return found
    first = causes[0]
    grown = first.model_copy(update={"evidence": (*first.evidence, *(logged(line) for line in incident.log[:3]))})
    return [grown if finding is first else finding for finding in found]


def _rule_of(finding: Finding) -> Rule:
    return _BY_ID[finding.rule]
