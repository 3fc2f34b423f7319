"""A finished reproduction as one JSON document. The terminal view shows the same facts."""

from collections.abc import Sequence
from typing import Any

from gemma4_dumps.listing import DumpEntry
from gemma4_dumps.reader import Dump
from gemma4_repro.expect_evidence import dumps_of
from gemma4_repro.log_exceptions import last_lines
from gemma4_repro.runner import Run
from gemma4_repro.scenario import Scenario
from gemma4_repro.verdict import ArmVerdict, RanArm, exit_code
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.patch import Kind
from gemma4_triage.report.root_cause import root_cause

LOG_LINES = 40


def repeat_command(scenario: Scenario, arm: RanArm) -> str:
    """The one command that runs this arm alone."""
    return f"gemma4-triage repro {scenario.id} --arm {arm.id}"


def stand_ins() -> list[dict[str, str]]:
    """The host engine's replacements of CUDA-only parts."""
    return [{"id": patch.id, "title": patch.title} for patch in CATALOG if patch.kind is Kind.HOST_LEAF]


def scenario_list(scenarios: Sequence[Scenario]) -> dict[str, Any]:
    """`repro` without an argument."""
    return {
        "scenarios": [
            {
                "id": scenario.id,
                "symptom": scenario.symptom,
                "hardware": scenario.hardware,
                "expected_s": scenario.expected_s,
                "arms": [{"id": arm.id, "title": arm.title} for arm in scenario.arms],
            }
            for scenario in scenarios
        ]
    }


def run_document(run: Run) -> dict[str, Any]:
    """What ran, what was expected of it, what was seen, and why."""
    return {
        "scenario": run.scenario.id,
        "symptom": run.scenario.symptom,
        "folder": str(run.folder),
        "sglang_version": run.sglang_version,
        "duration_s": round(run.duration_s, 2),
        "import_s": run.import_s,
        "host_engine": {"stand_ins": stand_ins()},
        "arms": [arm_fields(verdict, repeat_command(run.scenario, verdict.arm)) for verdict in run.verdicts],
        "root_cause": root_cause_fields(run.verdicts),
        "exit_code": exit_code(run.verdicts),
    }


def root_cause_fields(verdicts: Sequence[ArmVerdict]) -> dict[str, Any] | None:
    """Return what the dump that explains a run says; None where there is none."""
    cause = cause_entry(verdicts)
    if cause is None or cause.manifest is None:
        return None
    return {"text": root_cause(Dump(cause.path, cause.manifest)), "dump": str(cause.path)}


def cause_entry(verdicts: Sequence[ArmVerdict]) -> DumpEntry | None:
    """The dump that explains the run: the newest readable one of the first arm that has one."""
    for verdict in verdicts:
        for entry in dumps_of(verdict.outcome):
            if entry.manifest is not None:
                return entry
    return None


def arm_fields(verdict: ArmVerdict, repeat: str) -> dict[str, Any]:
    """Return an arm's part of a verdict. repeat: the command that runs it again."""
    outcome = verdict.outcome
    return {
        "id": verdict.arm.id,
        "title": verdict.arm.title,
        "device_model": verdict.arm.device_model,
        "environment": dict(verdict.arm.environment),
        "status": verdict.status,
        "duration_s": round(outcome.duration_s, 2),
        **outcome.how_it_ended(),
        "checks": [
            {"expected": check.expected, "observed": check.observed, "status": check.status.value}
            for check in verdict.checks
        ],
        "numbers": verdict.numbers,
        "log": str(outcome.log),
        "log_tail": last_lines(outcome.log, LOG_LINES) if verdict.surprised else [],
        "dumps": [{"path": str(entry.path), "state": entry.state} for entry in dumps_of(outcome)],
        "repeat": repeat,
    }
