"""A finished run of the corpus as one JSON document. The terminal view shows the same facts."""

import os
from collections.abc import Sequence
from typing import Any

from gemma4_dumps.reader import Dump
from gemma4_repro.detection.case import Case, CleanCase, FaultCase, LogitFault
from gemma4_repro.detection.catalog import LOGIT_FAULTS
from gemma4_repro.detection.matrix import CleanRow, FaultRow, Matrix, Row
from gemma4_repro.detection.runner import CorpusRun
from gemma4_runtime.catalog import CATALOG
from gemma4_triage.report.repro_document import stand_ins
from gemma4_triage.report.root_cause import root_cause


def probe_columns(matrix: Matrix) -> tuple[str, ...]:
    """The catalog's probes in its order, then whatever else wrote a dump."""
    known = [patch.id for patch in CATALOG if patch.finds]
    rows: Sequence[Row] = (*matrix.faults, *matrix.clean)
    return tuple(dict.fromkeys([*known, *(probe for row in rows for probe in row.fired)]))


def repeat_command(case: Case) -> str:
    """The one command that runs this case alone."""
    return f"gemma4-triage repro corpus --only {case.id}"


def case_list(
    faults: Sequence[FaultCase], clean: Sequence[CleanCase], logit_faults: Sequence[LogitFault]
) -> dict[str, Any]:
    """`repro corpus --list`."""
    return {
        "faults": [_fault(case) for case in faults],
        "clean": [_case(case) for case in clean],
        "logit_faults": [_logit_fault(case) for case in logit_faults],
    }


def corpus_document(run: CorpusRun) -> dict[str, Any]:
    """What was injected, which probe saw it, what it said, and what went wrong without it."""
    matrix = run.matrix
    return {
        "folder": str(run.folder),
        "sglang_version": run.sglang_version,
        "duration_s": round(run.duration_s, 2),
        "import_s": run.import_s,
        "cores": os.cpu_count(),
        "host_engine": {"stand_ins": stand_ins()},
        "probes": list(probe_columns(matrix)),
        "faults": [_fault(row.case) | _fault_row(row) for row in matrix.faults],
        "clean": [_case(row.case) | _clean_row(row) for row in matrix.clean],
        "logit_faults": [_logit_fault(case) for case in LOGIT_FAULTS],
        "totals": matrix.totals,
        "exit_code": matrix.exit_code,
    }


def _case(case: Case) -> dict[str, Any]:
    return {"id": case.id, "title": case.title, "engine": dict(case.engine), "mtp": case.mtp}


def _fault(case: FaultCase) -> dict[str, Any]:
    return _case(case) | {
        "origin": {"reference": case.origin.reference, "reported": case.origin.reported},
        "injected": case.injected,
        "faults": list(case.inject),
        "fixes_off": list(case.without),
        "expected": [
            {
                "probe": finding.probe,
                "rule": finding.rule,
                "verdict": finding.verdict,
                "evidence": {
                    name: list(value) if isinstance(value, tuple) else value for name, value in finding.evidence.items()
                },
                "proofs": [proof.__name__ for proof in finding.proofs],
            }
            for finding in case.findings
        ],
    }


def _logit_fault(case: LogitFault) -> dict[str, Any]:
    return {
        "id": case.id,
        "title": case.title,
        "origin": {"reference": case.origin.reference, "reported": case.origin.reported},
        "injected": case.injected,
        "faults": list(case.inject),
        "caught_by": case.command,
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "fired": row.fired,
        "steps_to_detection": row.steps_to_detection,
        "dumps": [
            {
                "probe": sighting.probe,
                "rule": sighting.manifest.rule,
                "verdict": sighting.manifest.verdict,
                "summary": sighting.manifest.summary,
                "step": sighting.step,
                "runner_step": sighting.manifest.step,
                "path": str(sighting.path),
            }
            for sighting in row.evidence.sightings
        ],
        "unreadable_dumps": row.evidence.unreadable,
        "ending": row.evidence.ending,
        "duration_s": round(row.evidence.duration_s, 2),
        "repeat": repeat_command(row.case),
    }


def _fault_row(row: FaultRow) -> dict[str, Any]:
    first = row.first
    return {
        "good": row.good,
        "detected": row.detected,
        "silent_probes": list(row.silent),
        "cause": row.cause.value,
        "objections": list(row.objections),
        "root_cause": None if first is None else root_cause(Dump(first.path, first.manifest)),
        "unguarded": row.unguarded,
    } | _row(row)


def _clean_row(row: CleanRow) -> dict[str, Any]:
    return {
        "good": row.good,
        "false_alarms": row.false_alarms,
        "objections": list(row.objections),
    } | _row(row)
