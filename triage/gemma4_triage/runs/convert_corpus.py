"""The record of a finished run of the corpus: what was injected, which probe saw it, and what it said."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from gemma4_dumps.reader import Dump
from gemma4_repro.corpus.case import Case, CleanCase, FaultCase, LogitFault
from gemma4_repro.corpus.catalog import absent_cases
from gemma4_repro.corpus.faults import LOGIT_FAULTS
from gemma4_repro.corpus.matrix import CleanRow, FaultRow, Matrix, Row
from gemma4_repro.corpus.on_release import reason_absent
from gemma4_repro.corpus.runner import CorpusRun as FinishedCorpus
from gemma4_runtime.catalog import CATALOG
from gemma4_triage.runs.convert import readable, stand_ins
from gemma4_triage.runs.corpus_record import (
    CaseList,
    CaseRecord,
    CleanRecord,
    CorpusRun,
    ExpectedFinding,
    FaultCaseRecord,
    FaultRecord,
    LogitFaultRecord,
    Origin,
    SightingRecord,
    Totals,
)
from gemma4_triage.runs.record import HostEngine
from gemma4_triage.runs.root_cause import root_cause


def case_list(
    faults: Sequence[FaultCase], clean: Sequence[CleanCase], logit_faults: Sequence[LogitFault], release: str
) -> CaseList:
    """Return what `repro corpus --list` says: all cases, and which of them a release cannot have."""
    return CaseList(
        sglang_version=release,
        absent=absent_cases(release),
        faults=tuple(FaultCaseRecord(**_fault(case)) for case in faults),
        clean=tuple(CaseRecord(**_case(case)) for case in clean),
        logit_faults=tuple(_logit_fault(case) for case in logit_faults),
    )


def record_of_corpus(run: FinishedCorpus) -> CorpusRun:
    """Return the record of a run of the corpus."""
    matrix = run.matrix
    return CorpusRun(
        folder=readable(run.folder),
        sglang_version=run.sglang_version,
        duration_s=round(run.duration_s, 2),
        import_s=run.import_s,
        cores=os.cpu_count(),
        host_engine=HostEngine(stand_ins=stand_ins()),
        probes=_probe_columns(matrix),
        faults=tuple(_fault_row(row) for row in matrix.faults),
        clean=tuple(_clean_row(row) for row in matrix.clean),
        logit_faults=tuple(_logit_fault(case) for case in LOGIT_FAULTS if not reason_absent(case, run.sglang_version)),
        totals=Totals(**matrix.totals),
        absent=dict(run.absent),
        exit_code=matrix.exit_code,
    )


def _probe_columns(matrix: Matrix) -> tuple[str, ...]:
    """Return the catalog's probes in its order, then whatever else wrote a dump."""
    known = [patch.id for patch in CATALOG if patch.finds]
    rows: Sequence[Row] = (*matrix.faults, *matrix.clean)
    return tuple(dict.fromkeys([*known, *(probe for row in rows for probe in row.fired)]))


def _case(case: Case) -> dict[str, Any]:
    return {"id": case.id, "title": case.title, "engine": dict(case.engine), "mtp": case.mtp}


def _fault(case: FaultCase) -> dict[str, Any]:
    expected = (
        ExpectedFinding(
            probe=finding.probe,
            rule=finding.rule,
            verdict=finding.verdict,
            evidence={
                name: list(value) if isinstance(value, tuple) else value for name, value in finding.evidence.items()
            },
            proofs=tuple(proof.__name__ for proof in finding.proofs),
        )
        for finding in case.findings
    )
    return _case(case) | {
        "origin": Origin(reference=case.origin.reference, reported=case.origin.reported),
        "injected": case.injected,
        "faults": case.inject,
        "fixes_off": case.without,
        "expected": tuple(expected),
    }


def _logit_fault(case: LogitFault) -> LogitFaultRecord:
    return LogitFaultRecord(
        id=case.id,
        title=case.title,
        origin=Origin(reference=case.origin.reference, reported=case.origin.reported),
        injected=case.injected,
        faults=case.inject,
        caught_by=case.command,
    )


def _row(row: Row) -> dict[str, Any]:
    sightings = (
        SightingRecord(
            probe=sighting.probe,
            rule=sighting.manifest.rule,
            verdict=sighting.manifest.verdict,
            summary=sighting.manifest.summary,
            step=sighting.step,
            runner_step=sighting.manifest.step,
            path=readable(sighting.path),
        )
        for sighting in row.evidence.sightings
    )
    return {
        "fired": row.fired,
        "steps_to_detection": row.steps_to_detection,
        "dumps": tuple(sightings),
        "unreadable_dumps": row.evidence.unreadable,
        "ending": row.evidence.ending,
        "duration_s": round(row.evidence.duration_s, 2),
        "repeat": f"gemma4-triage repro corpus --only {row.case.id}",
    }


def _fault_row(row: FaultRow) -> FaultRecord:
    first = row.first
    return FaultRecord(
        **_fault(row.case),
        good=row.good,
        detected=row.detected,
        silent_probes=row.silent,
        cause=row.cause.value,
        objections=row.objections,
        root_cause=None if first is None else root_cause(Dump(first.path, first.manifest)),
        unguarded=row.unguarded,
        **_row(row),
    )


def _clean_row(row: CleanRow) -> CleanRecord:
    return CleanRecord(
        **_case(row.case), good=row.good, false_alarms=row.false_alarms, objections=row.objections, **_row(row)
    )
