"""Holds what the probes dumped against what each case expects: detected or not, the right cause or not. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from gemma4_dumps.errors import ExitCode
from gemma4_dumps.schema import Manifest
from gemma4_repro.corpus.case import Case, CleanCase, FaultCase

PROBE_OF_RULE: Mapping[str, str] = {
    "page-table-bounds": "page-table",
    "swa-alloc-range": "swa-allocator",
    "swa-alloc-overlap": "swa-allocator",
    "swa-free-range": "swa-allocator",
    "swa-double-free": "swa-allocator",
    "swa-stale-mapping": "swa-allocator",
    "swa-mapping-alias": "swa-allocator",
    "swa-lost-pages": "swa-allocator",
    "geometry": "geometry",
    "leak-audit": "leak-ledger",
    "batch-shapes": "batch-shapes",
    "request-rows": "request-rows",
    "process-end": "process-end",
    "accept-length": "accept-length",
}
"""Which probe writes a rule. A dump names its rule; people ask which probe fired."""

OF_ANY_FAULT = (
    ("process-end", "exception"),
    ("accept-length", "accept_length_fell"),
    ("accept-length", "no_draft_accepted"),
)
"""Rule and verdict of what any fault may lead to: an engine that dies of it, and drafts that are accepted less."""
NOT_OF_THE_CORPUS = frozenset({"accept-length", "process-end", "request-rows"})
"""Probes that no fault of the corpus has to lead to: they see what others did not, and have tests of their own."""


def probe_of(rule: str) -> str:
    """Return the probe behind `rule`; the rule itself where that is not known."""
    return PROBE_OF_RULE.get(rule, rule)


class Cause(StrEnum):
    RIGHT = "right"
    WRONG = "wrong"
    NONE = "none"


@dataclass(frozen=True)
class Sighting:
    """One readable dump of a run. step: the scheduler's step at which it was written, 0 before the first."""

    path: Path
    manifest: Manifest
    step: int

    @property
    def probe(self) -> str:
        return probe_of(self.manifest.rule)

    @property
    def kind(self) -> tuple[str, str]:
        return self.manifest.rule, self.manifest.verdict


@dataclass(frozen=True)
class Evidence:
    """What one guarded run left.

    Attributes:
        unreadable: dumps that nobody can read.
        incomplete: why the load was not served whole, None if it was.
        missing: texts that its log should hold and does not.
        ending: in words.
    """

    sightings: tuple[Sighting, ...]
    unreadable: int
    ending: str
    incomplete: str | None
    missing: tuple[str, ...]
    duration_s: float


@dataclass(frozen=True)
class Row:
    """One case, judged. unguarded: how the same run ended without probes, None if that was not tried."""

    case: Case
    evidence: Evidence
    unguarded: str | None = None

    @property
    def first(self) -> Sighting | None:
        return self.evidence.sightings[0] if self.evidence.sightings else None

    @property
    def fired(self) -> dict[str, int]:
        """Dumps per probe."""
        return dict(Counter(sighting.probe for sighting in self.evidence.sightings))

    @property
    def steps_to_detection(self) -> int | None:
        return None if self.first is None else self.first.step


class FaultRow(Row):
    case: FaultCase

    @property
    def silent(self) -> tuple[str, ...]:
        """Probes that should have fired and did not."""
        return tuple(probe for probe in self.case.probes if probe not in self.fired)

    @property
    def detected(self) -> bool:
        return not self.silent

    @property
    def objections(self) -> tuple[str, ...]:
        """Why the dumps do not name the cause; empty if they do."""
        if self.first is None:
            return ()
        right = (*self.case.findings, *self.case.earlier)
        findings = [finding.contradictions(self.first.manifest) for finding in right]
        objections = [] if () in findings else [f"the first dump says otherwise: {'; '.join(min(findings, key=len))}"]
        for sighting in self.evidence.sightings[1:]:
            known = sighting.kind in (*self.case.consequences, *OF_ANY_FAULT)
            if not known and all(finding.contradictions(sighting.manifest) for finding in right):
                objections.append(f"a later dump names another cause: {', '.join(sighting.kind)}")
        for finding in self.case.findings:
            if all(finding.contradictions(sighting.manifest) for sighting in self.evidence.sightings):
                objections.append(f"no dump says {finding.text}")
        return tuple(dict.fromkeys(objections))

    @property
    def cause(self) -> Cause:
        if self.first is None:
            return Cause.NONE
        return Cause.WRONG if self.objections else Cause.RIGHT

    @property
    def good(self) -> bool:
        return self.detected and self.cause is Cause.RIGHT and not self.evidence.unreadable


class CleanRow(Row):
    case: CleanCase

    @property
    def false_alarms(self) -> int:
        """Dumps of any state: a torn one is an alarm as well."""
        return len(self.evidence.sightings) + self.evidence.unreadable

    @property
    def objections(self) -> tuple[str, ...]:
        """Why the run says nothing about false alarms."""
        missing = tuple(f"its log never says {text!r}" for text in self.evidence.missing)
        return missing if self.evidence.incomplete is None else (self.evidence.incomplete, *missing)

    @property
    def good(self) -> bool:
        return not self.false_alarms and not self.objections


@dataclass(frozen=True)
class Matrix:
    faults: tuple[FaultRow, ...]
    clean: tuple[CleanRow, ...]

    @property
    def totals(self) -> dict[str, Any]:
        return {
            "faults": len(self.faults),
            "missed": sum(not row.detected for row in self.faults),
            "wrong_causes": sum(row.cause is Cause.WRONG for row in self.faults),
            "clean_runs": len(self.clean),
            "false_alarms": sum(row.false_alarms for row in self.clean),
            "unfit_clean_runs": sum(bool(row.objections) for row in self.clean),
        }

    @property
    def exit_code(self) -> ExitCode:
        rows: Sequence[FaultRow | CleanRow] = (*self.faults, *self.clean)
        return ExitCode.OK if all(row.good for row in rows) else ExitCode.VIOLATION
