"""The record of a finished reproduction: what ran, what was expected of it, what was seen, and why."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gemma4_dumps.listing import DumpEntry
from gemma4_dumps.reader import Dump
from gemma4_repro.crash.cells import Cell
from gemma4_repro.crash.expected import Expected
from gemma4_repro.crash.outcome import Served
from gemma4_repro.engine.log_exceptions import last_lines
from gemma4_repro.expect_evidence import dumps_of
from gemma4_repro.runner import Run
from gemma4_repro.scenario import Scenario
from gemma4_repro.verdict import ArmVerdict, exit_code
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.host_environment import with_stand_ins
from gemma4_runtime.patch import Kind
from gemma4_runtime.releases import installed_or_base
from gemma4_runtime.standing import State, standing
from gemma4_triage.runs.record import (
    ArmRecord,
    CellExpectation,
    CellRun,
    CheckRecord,
    HostEngine,
    LoadRecord,
    RanCell,
    RootCause,
    ScenarioRun,
    StandIn,
    StoredDump,
    dump_named,
)
from gemma4_triage.runs.root_cause import root_cause

LOG_LINES = 40


@dataclass(frozen=True)
class RanArm:
    """A cell as a verdict's arm. environment: what its server was told by variables."""

    id: str
    title: str
    device_model: str
    environment: Mapping[str, str]


@dataclass(frozen=True)
class CrashRun:
    """A finished run of a cell. typed: the command that repeats it. lines: the server's and clients' shell lines."""

    cell: Cell
    folder: Path
    sglang_version: str
    toy: bool
    device: str
    expected: Expected
    served: Served
    verdict: ArmVerdict
    typed: str
    lines: Sequence[str]


def scenario_list(scenarios: Sequence[Scenario]) -> dict[str, Any]:
    """Return the document of `repro` without an argument."""
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


def record_of_scenario(run: Run) -> ScenarioRun:
    """Return the record of a scenario's run."""
    return ScenarioRun(
        scenario=run.scenario.id,
        symptom=run.scenario.symptom,
        folder=readable(run.folder),
        sglang_version=run.sglang_version,
        duration_s=round(run.duration_s, 2),
        import_s=run.import_s,
        host_engine=HostEngine(stand_ins=stand_ins()),
        arms=tuple(_arm(one, f"gemma4-triage repro {run.scenario.id} --arm {one.arm.id}") for one in run.verdicts),
        root_cause=_root_cause(run.verdicts),
        exit_code=exit_code(run.verdicts),
    )


def record_of_cell(run: CrashRun) -> CellRun:
    """Return the record of a cell's run: one of a scenario of one arm, with what a cell has beside it."""
    return CellRun(
        scenario=f"crash {run.cell.id}",
        symptom=run.cell.title,
        folder=readable(run.folder),
        sglang_version=run.sglang_version,
        duration_s=round(run.served.duration_s, 2),
        host_engine=HostEngine(stand_ins=stand_ins() if run.toy else ()),
        arms=(_arm(run.verdict, readable(run.typed)),),
        root_cause=_root_cause((run.verdict,)),
        exit_code=exit_code((run.verdict,)),
        cell=RanCell(id=run.cell.id, toy=run.toy, device=run.device),
        expected=CellExpectation(text=run.expected.text, why=run.expected.why, measured=run.expected.measured),
        stop=run.served.stop,
        loads=tuple(LoadRecord(**asdict(load)) for load in run.served.loads),
        shell_lines=tuple(readable(line) for line in run.lines),
    )


def stand_ins() -> tuple[StandIn, ...]:
    """Return the host engine's replacements of CUDA-only parts, for the release that is installed."""
    release = installed_or_base()
    leaves = (patch for patch in CATALOG if patch.kind is Kind.HOST_LEAF)
    package = (StandIn(id="sgl_kernel", title="SGLang's kernel package, which needs CUDA to load, in torch"),)
    return (package if with_stand_ins({}) else ()) + tuple(
        StandIn(id=leaf.id, title=leaf.title) for leaf in leaves if standing(leaf, release).state is State.ATTACHES
    )


def stored(entries: Iterable[DumpEntry]) -> tuple[StoredDump, ...]:
    """Return where dumps lie and of which rule each is."""
    return tuple(
        StoredDump(path=readable(one.path), state=one.state, rule=one.manifest.rule if one.manifest else None)
        for one in entries
    )


def readable(text: str | Path) -> str:
    """Return text of the file system or the command line as text that JSON has: in UTF-8, whatever else is replaced."""
    return os.fsencode(text).decode("utf-8", "replace")


def _root_cause(verdicts: Sequence[ArmVerdict]) -> RootCause | None:
    """Return what the newest readable dump of the first arm that has one says; None where there is none."""
    entries = (entry for verdict in verdicts for entry in dumps_of(verdict.outcome))
    for entry in entries:
        if entry.manifest is not None:
            return RootCause(text=root_cause(Dump(entry.path, entry.manifest)), dump=readable(entry.path))
    return None


def _arm(verdict: ArmVerdict, repeat: str) -> ArmRecord:
    outcome = verdict.outcome
    dumps = stored(dumps_of(outcome))
    paths = [dump.path for dump in dumps]
    return ArmRecord(
        id=verdict.arm.id,
        title=verdict.arm.title,
        device_model=verdict.arm.device_model,
        environment={name: readable(value) for name, value in verdict.arm.environment.items()},
        status=verdict.status,
        duration_s=round(outcome.duration_s, 2),
        **outcome.how_it_ended(),
        checks=tuple(
            CheckRecord(
                expected=check.expected,
                observed=check.observed,
                status=check.status.value,
                dump=dump_named(check.observed, paths),
            )
            for check in verdict.checks
        ),
        numbers=verdict.numbers,
        log=readable(outcome.log),
        log_tail=tuple(last_lines(outcome.log, LOG_LINES)) if verdict.surprised else (),
        dumps=dumps,
        repeat=repeat,
    )
