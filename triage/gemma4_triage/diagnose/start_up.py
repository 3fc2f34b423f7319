"""What the `geometry` probe found when the server started: from its dumps, else from the guard manifests.

In `contain` and `trap` advice is no dump; then the guard manifest's line is all there is. Notes are no evidence: they
say what some requests will meet with the sizes that were chosen, and every clean run has some.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from gemma4_triage.diagnose.evidence import guarded, said
from gemma4_triage.diagnose.incident import GEOMETRY, Incident
from gemma4_triage.diagnose.rule import Seen
from gemma4_triage.finding import Evidence

POOL_SIZE = re.compile(r"target allocator_slots_\w+: found (\d{1,18}), expected (\d{1,18}), in pages of (\d{1,9})")
"""What is said of a pool whose allocator has another size."""
SINCE_START = "since_start"
"""What a dump says that is of a change since the start."""
_LEAST = re.compile(r"(?:at least|more than) (\d{1,18})")


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


def start_up_summaries(incident: Incident, verdict: str) -> list[str]:
    """Return what was said of each comparison with this verdict, in dumps and in guard manifests."""
    dumped = [dump.manifest.summary for dump in incident.of(rule=GEOMETRY, verdict=verdict)]
    noted = [one for guards in incident.guards for one in guards.start_up_findings()]
    return dumped + [one.summary for one in noted if one.verdict == verdict and one.severity != "note"]


def sides_agree(seen: Seen) -> bool | None:
    """Return whether both sides of each comparison that a finding rests on say the same; None if none is there."""
    sides = list(_sides(seen))
    return all(_agree(found, expected) for found, expected in sides) if sides else None


def _sides(seen: Seen) -> Iterator[tuple[str, str]]:
    for piece in seen.finding.evidence:
        dump = seen.incident.dump(piece.source)
        if dump is not None and piece.field == "scalars.found":
            yield str(piece.value), str(dump.manifest.scalars.get("expected"))
        elif piece.field.endswith(".summary") and "found " in str(piece.value):
            found, _, expected = str(piece.value).partition("found ")[2].partition(", expected ")
            yield found, expected


def _agree(found: str, expected: str) -> bool:
    wanted = expected.partition(",")[0]
    least = _LEAST.fullmatch(wanted)
    if least is None or not found.isdecimal():
        return found in (wanted, expected)
    return int(found[:18]) >= int(least[1]) + wanted.startswith("more")
