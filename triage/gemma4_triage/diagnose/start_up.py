"""What the `geometry` probe found when the server started: from its dumps, else from the guard manifests.

In `contain` and `trap` advice is no dump; then the guard manifest's line is all there is. Notes are no evidence: they
say what some requests will meet with the sizes that were chosen, and every clean run has some.
"""

from __future__ import annotations

from collections.abc import Callable

from gemma4_triage.diagnose.evidence import guarded, said
from gemma4_triage.diagnose.incident import GEOMETRY, Incident
from gemma4_triage.finding import Evidence


def start_up_evidence(
    incident: Incident, verdict: str, about: Callable[[str], bool], meaning: str
) -> tuple[Evidence, ...]:
    """Return both sides of each comparison with this verdict whose summary is `about` the cause; empty if none is."""
    dumps = [dump for dump in incident.of(rule=GEOMETRY, verdict=verdict) if about(dump.manifest.summary)]
    if dumps:
        return tuple(
            evidence
            for dump in dumps
            for evidence in (
                said(dump, "scalars.found", meaning),
                said(dump, "scalars.expected", "what it has to be"),
            )
        )
    return tuple(
        guarded(guards, found.field, f"{meaning}; noted at start-up, no dump of it")
        for guards in incident.guards
        for found in guards.start_up_findings()
        if found.verdict == verdict and found.severity != "note" and about(found.summary)
    )
