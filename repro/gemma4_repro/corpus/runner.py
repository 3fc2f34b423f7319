"""Runs the corpus, an engine for each case, and judges it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from gemma4_repro import run_engines
from gemma4_repro.corpus.case import Case, CleanCase, FaultCase
from gemma4_repro.corpus.catalog import absent_cases, choose_cases
from gemma4_repro.corpus.evidence import ending_text, gather
from gemma4_repro.corpus.matrix import CleanRow, FaultRow, Matrix, Row
from gemma4_repro.engine.arm_request import ArmRequest
from gemma4_repro.engine.outcome import Outcome
from gemma4_repro.engine.readiness import model_arguments
from gemma4_repro.recorders.catalog import remove_traces
from gemma4_repro.run_engines import EngineRun, Place
from gemma4_repro.scenarios.e4b_engine import E4B_TOYS, e4b_engine
from gemma4_runtime.releases import installed_or_base

UNGUARDED = "-unguarded"


class Listener(Protocol):
    """Is told how a run comes along. waiting: see run_engines.Listener."""

    def importing(self, sglang_version: str, folder: Path) -> None: ...
    def started(self, name: str, title: str, limit_s: float) -> None: ...
    def waiting(self, phases: dict[str, str | None], elapsed_s: float) -> None: ...
    def judged(self, row: FaultRow | CleanRow) -> None: ...


@dataclass(frozen=True)
class Options:
    """What of the corpus to run, and how.

    Attributes:
        only: Case ids, all if empty.
        output: The run's folder; None: a new one.
        overwrite: Whether a folder that exists is replaced.
        keep_traces: Whether the engines' logs stay.
        time_limit_s: Of each engine; None: the case's own.
        unguarded: Whether each fault runs a second time without probes, to see what it does.
        side_by_side: See run_engines.Options.
    """

    only: tuple[str, ...] = ()
    output: Path | None = None
    overwrite: bool = False
    keep_traces: bool = False
    time_limit_s: float | None = None
    unguarded: bool = False
    side_by_side: int | None = None


@dataclass(frozen=True)
class CorpusRun:
    """A finished run.

    Attributes:
        folder: Of the run.
        sglang_version: As it says itself.
        duration_s: Of everything.
        import_s: How long the one import of SGLang took, part of duration_s.
        matrix: The cases, judged.
        absent: Ids of cases that the release cannot have, and why; empty where cases were named.
    """

    folder: Path
    sglang_version: str
    duration_s: float
    import_s: float
    matrix: Matrix
    absent: Mapping[str, str] = field(default_factory=dict)


def run_corpus(options: Options, listener: Listener, command: Sequence[str] | None = None) -> CorpusRun:
    """Run the chosen cases and judge them. command: of the prefork process, for tests.

    Raises:
        UnknownName: a case that the corpus does not have.
        OutputRefused, OutputUnwritable: see run_folder.
        EnvironmentLacks: no SGLang, a release that is not known, no toys, CUDA present, the import failed.
    """
    began = time.monotonic()
    cases = choose_cases(options.only, installed_or_base())
    models = model_arguments(E4B_TOYS)
    names = tuple(name for case in cases for name in _folders(case, options))

    def requests(place: Place) -> list[EngineRun]:
        return [
            _engine_run(case, place.folder / name, models, options)
            for case in cases
            for name in _folders(case, options)
        ]

    how = run_engines.Options("corpus", names, options.output, options.overwrite, options.side_by_side, command)
    judging = _Judging(cases, options, listener)
    engines = run_engines.run_engines(requests, how, judging)
    if not options.keep_traces:
        remove_traces(engines.folder, names)
    rows = judging.rows
    matrix = Matrix(
        tuple(row for row in rows if isinstance(row, FaultRow)), tuple(row for row in rows if isinstance(row, CleanRow))
    )
    absent = {} if options.only else absent_cases(engines.sglang_version)
    return CorpusRun(engines.folder, engines.sglang_version, time.monotonic() - began, engines.import_s, matrix, absent)


class _Judging:
    """Judges each case as soon as all its engines have ended, and tells the corpus's listener."""

    def __init__(self, cases: Sequence[Case], options: Options, listener: Listener) -> None:
        self._case_of = {name: case for case in cases for name in _folders(case, options)}
        self._options, self._listener = options, listener
        self._outcomes: list[Outcome] = []
        self.rows: list[FaultRow | CleanRow] = []
        self.importing, self.waiting = listener.importing, listener.waiting

    def started(self, run: EngineRun) -> None:
        name = run.request.arm
        self._listener.started(name, self._case_of[name].title, run.limit_s)

    def ended(self, outcome: Outcome) -> None:
        """Outcomes come in the order of the requests, so a case's come one after the other."""
        self._outcomes.append(outcome)
        case = self._case_of[outcome.arm]
        if len(self._outcomes) == len(_folders(case, self._options)):
            row = _row(case, self._outcomes)
            self._outcomes = []
            self.rows.append(row)
            self._listener.judged(row)


def _folders(case: Case, options: Options) -> tuple[str, ...]:
    """Return the sub-folders of the run that belong to a case: one per engine."""
    also = options.unguarded and isinstance(case, FaultCase)
    return (case.id, case.id + UNGUARDED) if also else (case.id,)


def _row(case: Case, outcomes: Sequence[Outcome]) -> FaultRow | CleanRow:
    kind: type[Row] = CleanRow if isinstance(case, CleanCase) else FaultRow
    row = kind(case, gather(case, outcomes[0]), ending_text(outcomes[1]) if len(outcomes) > 1 else None)
    assert isinstance(row, FaultRow | CleanRow)
    return row


def _engine_run(case: Case, folder: Path, models: Mapping[str, Any], options: Options) -> EngineRun:
    guarded = not folder.name.endswith(UNGUARDED)
    engine = e4b_engine(**{"attention_backend": "trtllm_mha", **case.engine}) | dict(models)
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
        ignore_eos=case.ignore_eos,
        stage_of=case.workload.stage_of(),
        aborted=dict(case.workload.aborted),
        recorders=["drafts", "steps"],
    )
    return EngineRun(request, options.time_limit_s or case.time_limit_s)
