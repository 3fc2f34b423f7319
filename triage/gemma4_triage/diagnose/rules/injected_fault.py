"""The server was asked to break itself. Where a cause is found that the fault is, the two become one finding."""

from gemma4_triage.diagnose.evidence import guarded
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.rule import Exclusion, Rule
from gemma4_triage.finding import Confidence, Finding
from gemma4_triage.logs.rule import over

ID = "injected-fault"


def find(incident: Incident) -> Finding | None:
    # What stands in a guard manifest says more than the line that the server printed.
    injected = {
        fault: over(facts, "FAULT INJECTED", fault, "injected on request, as the server printed")
        for facts in incident.logs
        for fault in facts.faults
    }
    injected |= {
        fault: guarded(guards, f"settings.faults.{number}", "injected on request, by GEMMA4_TRIAGE_FAULTS")
        for guards in reversed(incident.guards)
        for number, fault in enumerate(guards.faults)
    }
    if not injected:
        return None
    return Finding(
        rule=ID,
        cause="This server was asked to break itself: a fault was injected, and no dump here shows it.",
        confidence=Confidence.POSSIBLE,
        evidence=tuple(injected.values()),
        advice=("Unset GEMMA4_TRIAGE_FAULTS before you look for any other cause.",),
    )


RULE = Rule(ID, find, ruled_out_if=(Exclusion("the same happens without GEMMA4_TRIAGE_FAULTS"),))
