"""The record of a corpus run: each fault and clean load with what was seen of it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gemma4_triage.runs.record import SCHEMA_VERSION, FolderName, HostEngine, RecordPart, Seconds, Version


class Origin(RecordPart):
    """The public report of a fault. reported: what its users saw."""

    reference: str = ""
    reported: str = ""


class ExpectedFinding(RecordPart):
    """What a probe has to say of a fault. proofs: names of what is checked beyond the dump's fields."""

    probe: str
    rule: str = ""
    verdict: str = ""
    evidence: dict[str, Any] = Field(default_factory=dict)
    proofs: tuple[str, ...] = ()


class CaseRecord(RecordPart):
    """A case of the corpus. engine: arguments that differ from the scenarios'."""

    id: FolderName
    title: str = ""
    engine: dict[str, Any] = Field(default_factory=dict)
    mtp: bool = True


class FaultCaseRecord(CaseRecord):
    """A fault and what it must lead to. faults: ids that are injected. fixes_off: fixes that are left off."""

    origin: Origin = Origin()
    injected: str = ""
    faults: tuple[str, ...] = ()
    fixes_off: tuple[str, ...] = ()
    expected: tuple[ExpectedFinding, ...] = ()

    @property
    def probes(self) -> list[str]:
        """Return the probes that have to fire, each once."""
        return list(dict.fromkeys(finding.probe for finding in self.expected))


class LogitFaultRecord(RecordPart):
    """A fault that no probe can see. caught_by: the command that does."""

    id: str
    title: str = ""
    origin: Origin = Origin()
    injected: str = ""
    faults: tuple[str, ...] = ()
    caught_by: str = ""


class CaseList(RecordPart):
    """What `repro corpus --list` says.

    Attributes:
        sglang_version: The installed release.
        absent: Ids of what that release cannot have, and why.
        faults: Those that probes see.
        clean: Loads that must lead to nothing.
        logit_faults: Those that no probe sees.
    """

    sglang_version: str = ""
    absent: dict[str, str] = Field(default_factory=dict)
    faults: tuple[FaultCaseRecord, ...]
    clean: tuple[CaseRecord, ...]
    logit_faults: tuple[LogitFaultRecord, ...]


class SightingRecord(RecordPart):
    """A readable dump of a case. step: the scheduler's step at which it was written. runner_step: the engine's own."""

    probe: str
    rule: str
    verdict: str
    summary: str
    step: int
    runner_step: int | None
    path: str


class FaultRecord(FaultCaseRecord):
    """A fault that was injected. fired: dumps per probe. unguarded: how it ended without probes, None if not tried."""

    good: bool
    detected: bool = False
    silent_probes: tuple[str, ...] = ()
    cause: str = ""
    objections: tuple[str, ...] = ()
    root_cause: str | None = None
    unguarded: str | None = None
    fired: dict[str, int] = Field(default_factory=dict)
    steps_to_detection: int | None = None
    dumps: tuple[SightingRecord, ...] = ()
    unreadable_dumps: int = 0
    ending: str = ""
    duration_s: Seconds = 0
    repeat: str = ""


class CleanRecord(CaseRecord):
    """A clean load that was run. false_alarms: dumps of any state. Other fields as of a fault."""

    good: bool
    false_alarms: int = 0
    objections: tuple[str, ...] = ()
    fired: dict[str, int] = Field(default_factory=dict)
    steps_to_detection: int | None = None
    dumps: tuple[SightingRecord, ...] = ()
    unreadable_dumps: int = 0
    ending: str = ""
    duration_s: Seconds = 0
    repeat: str = ""


class Totals(RecordPart):
    """The corpus in numbers."""

    faults: int = 0
    missed: int = 0
    wrong_causes: int = 0
    clean_runs: int = 0
    false_alarms: int = 0
    unfit_clean_runs: int = 0


class CorpusRun(RecordPart):
    """A run of `repro corpus`. cores: of the machine. absent: ids of cases that the release cannot have, and why."""

    schema_version: Version = SCHEMA_VERSION
    kind: Literal["corpus"] = "corpus"
    folder: str = ""
    sglang_version: str = ""
    duration_s: Seconds = 0
    import_s: Seconds = 0
    cores: int | None = None
    host_engine: HostEngine = HostEngine()
    probes: tuple[str, ...] = ()
    faults: tuple[FaultRecord, ...] = ()
    clean: tuple[CleanRecord, ...] = ()
    logit_faults: tuple[LogitFaultRecord, ...] = ()
    totals: Totals = Totals()
    absent: dict[str, str] = Field(default_factory=dict)
    exit_code: int

    @property
    def parts(self) -> list[tuple[str, bool]]:
        """Return the folders of the cases, and whether each went as expected."""
        return [(case.id, case.good) for case in (*self.faults, *self.clean)]

    @property
    def with_logs(self) -> list[str]:
        """Return nothing: there are too many cases, and each log is short."""
        return []
