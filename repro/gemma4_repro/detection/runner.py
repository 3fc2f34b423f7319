"""Runs the corpus, one engine after the other below one process that has imported SGLang, and judges it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gemma4_repro.arm_request import REQUEST_NAME, ArmRequest, read_phase
from gemma4_repro.collect import collect
from gemma4_repro.detection.case import Case, CleanCase, FaultCase
from gemma4_repro.detection.catalog import choose_cases
from gemma4_repro.detection.evidence import STEPS_NAME, ending_text, gather
from gemma4_repro.detection.matrix import CleanRow, FaultRow, Matrix, Row
from gemma4_repro.host_environment import hermetic_environment
from gemma4_repro.outcome import Outcome
from gemma4_repro.readiness import check_sglang, model_arguments, refuse_cuda
from gemma4_repro.run_folder import prepare_run_folder, remove_traces, writing
from gemma4_repro.scenarios.e4b_engine import E4B_TOYS, e4b_engine
from gemma4_repro.supervisor import Supervisor

UNGUARDED = "-unguarded"


class Listener(Protocol):
    """Is told how a run comes along. `waiting` is called several times a second and should be quick."""

    def importing(self, sglang_version: str, folder: Path) -> None: ...
    def started(self, name: str, title: str, limit_s: float) -> None: ...
    def waiting(self, phase: str | None, elapsed_s: float) -> None: ...
    def judged(self, row: FaultRow | CleanRow) -> None: ...


@dataclass(frozen=True)
class Options:
    """only: case ids, all if empty. unguarded: run each fault a second time without probes, to see what it does."""

    only: tuple[str, ...] = ()
    output: Path | None = None
    overwrite: bool = False
    keep_traces: bool = False
    time_limit_s: float | None = None
    unguarded: bool = False


@dataclass(frozen=True)
class CorpusRun:
    """A finished run. import_s: how long the one import of SGLang took, part of duration_s."""

    folder: Path
    sglang_version: str
    duration_s: float
    import_s: float
    matrix: Matrix


def run_corpus(options: Options, listener: Listener, command: Sequence[str] | None = None) -> CorpusRun:
    """Run the chosen cases and judge them. command: of the prefork process, for tests.

    Raises:
        UnknownName: a case that the corpus does not have.
        OutputRefused, OutputUnwritable: see run_folder.
        EnvironmentLacks: no SGLang, a release that is not known, no toys, CUDA present, the import failed.
    """
    began = time.monotonic()
    cases = choose_cases(options.only)
    release = check_sglang()
    models = model_arguments(E4B_TOYS)
    names = tuple(name for case in cases for name in _folders(case, options))
    folder = prepare_run_folder("corpus", names, options.output, options.overwrite)
    rows: list[FaultRow | CleanRow] = []
    with writing(folder), Supervisor(folder / "prefork.txt", hermetic_environment(), command) as supervisor:
        listener.importing(release, folder)
        ready = supervisor.wait_ready(tick=lambda: listener.waiting("importing sglang", time.monotonic() - began))
        refuse_cuda(ready)
        for case in cases:
            row = _run_case(supervisor, case, folder, models, options, listener)
            rows.append(row)
            listener.judged(row)
    if not options.keep_traces:
        remove_traces(folder, names)
    matrix = Matrix(
        tuple(row for row in rows if isinstance(row, FaultRow)), tuple(row for row in rows if isinstance(row, CleanRow))
    )
    return CorpusRun(folder, release, time.monotonic() - began, float(ready["import_s"]), matrix)


def _folders(case: Case, options: Options) -> tuple[str, ...]:
    """The sub-folders of the run that belong to a case: one per engine."""
    also = options.unguarded and isinstance(case, FaultCase)
    return (case.id, case.id + UNGUARDED) if also else (case.id,)


def _run_case(
    supervisor: Supervisor,
    case: Case,
    folder: Path,
    models: Mapping[str, Any],
    options: Options,
    listener: Listener,
) -> FaultRow | CleanRow:
    outcomes = [
        _run_engine(supervisor, case, folder / name, models, options, listener) for name in _folders(case, options)
    ]
    kind: type[Row] = CleanRow if isinstance(case, CleanCase) else FaultRow
    row = kind(case, gather(case, outcomes[0]), ending_text(outcomes[1]) if len(outcomes) > 1 else None)
    assert isinstance(row, FaultRow | CleanRow)
    return row


def _run_engine(
    supervisor: Supervisor,
    case: Case,
    folder: Path,
    models: Mapping[str, Any],
    options: Options,
    listener: Listener,
) -> Outcome:
    guarded = not folder.name.endswith(UNGUARDED)
    engine = e4b_engine("trtllm_mha", **case.engine) | dict(models)
    if not case.mtp:
        engine = {name: value for name, value in engine.items() if not name.startswith("speculative_")}
    request = ArmRequest(
        arm=folder.name,
        folder=folder,
        command=["gemma4-triage", "repro", "corpus", "--only", case.id],
        environment={**case.environment(guarded), "SGLANG_TRTLLM_MHA_DEBUG_DIR": str(folder / "dumps")},
        engine_arguments=engine,
        prompts=case.workload.prompts(),
        new_tokens=case.workload.new_tokens(),
        stage_of=case.workload.stage_of(),
        aborted=dict(case.workload.aborted),
        step_times=STEPS_NAME,
    )
    (folder / REQUEST_NAME).write_text(request.model_dump_json(), encoding="utf-8")
    limit_s = options.time_limit_s or case.time_limit_s
    listener.started(folder.name, case.title, limit_s)
    began = time.monotonic()

    def tick() -> None:
        phase = read_phase(folder)
        listener.waiting(phase.value if phase else None, time.monotonic() - began)

    return collect(folder.name, folder, supervisor.run(folder, limit_s, tick), limit_s)
