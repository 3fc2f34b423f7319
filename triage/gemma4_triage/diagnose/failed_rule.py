"""What is said of a rule that raises: it takes nothing but itself from a diagnosis."""

from __future__ import annotations

import traceback
from pathlib import Path

from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.diagnose.rule import Rule
from gemma4_triage.finding import Confidence, Evidence, Finding, Kind

ID = "rule-failed"
_LONGEST = 200


def ask(rule: Rule, incident: Incident, failed: list[Finding]) -> Finding | None:
    """Return what a rule finds; None where it finds nothing or raises, which is added to `failed` once."""
    try:
        return rule.speak(incident)
    # Broad on purpose: what a dump may hold is more than rules were written for, and the others have their say.
    except Exception as error:  # noqa: BLE001
        told = _of(rule.id, error)
        if told not in failed:
            failed.append(told)
        return None


def _of(rule: str, error: Exception) -> Finding:
    at = traceback.extract_tb(error.__traceback__)[-1]
    return Finding(
        rule=ID,
        kind=Kind.NOTE,
        cause=(
            f"A defect of gemma4-triage, and none of the server: its rule {rule} broke off, and what it says of these "
            "dumps is not known. All other rules were asked."
        ),
        confidence=Confidence.POSSIBLE,
        evidence=(
            Evidence(
                source="gemma4-triage",
                field=f"{Path(at.filename).name}, line {at.lineno}",
                value=f"{type(error).__name__}: {error}"[:_LONGEST],
                meaning="what it broke off with",
            ),
        ),
        advice=("Attach the dumps (gemma4-triage dumps export) to a bug report.",),
    )
