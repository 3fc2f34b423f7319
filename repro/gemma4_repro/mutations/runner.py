"""Runs a draw: the clean loads, then an engine under all probes and one without any for each mutation, two at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gemma4_dumps.store import DumpStore
from gemma4_repro import run_engines
from gemma4_repro.engine.arm_request import ArmRequest
from gemma4_repro.engine.outcome import Ending, Outcome
from gemma4_repro.engine.readiness import model_arguments
from gemma4_repro.errors import OutputRefused
from gemma4_repro.mutations.draw import Mutation, draw
from gemma4_repro.mutations.grid import Server
from gemma4_repro.mutations.load import LOAD, PAUSE_S, Probes, engine_arguments, settings
from gemma4_repro.mutations.matrix import Matrix, matrix
from gemma4_repro.mutations.rows_file import RowsFile
from gemma4_repro.mutations.score import Clean, Named, Row, Sight, effect_of, ending_text, score
from gemma4_repro.mutations.truth import read_truth
from gemma4_repro.recorders.catalog import remove_traces
from gemma4_repro.recorders.steps import STEPS_NAME, read_step_times, step_at
from gemma4_repro.run_engines import EngineRun, Place
from gemma4_repro.scenarios.e4b_engine import E4B_TOYS
from gemma4_runtime.releases import installed_or_base

TIME_LIMIT_S = 120.0
BARE = "-bare"
_CLEAN = {
    (mtp, server): f"clean-{'mtp' if mtp else 'plain'}{'' if server is Server.STEPWISE else '-' + server.name.lower()}"
    for mtp in (True, False)
    for server in Server
}

Diagnose = Callable[[Path, Path], Sequence[Named]]
"""From a folder of dumps and a log to the causes that the diagnosis names, the first one first."""


class Listener(Protocol):
    """Is told how a run comes along. waiting: see run_engines.Listener."""

    def importing(self, sglang_version: str, folder: Path) -> None: ...
    def started(self, name: str, limit_s: float) -> None: ...
    def waiting(self, phases: dict[str, str | None], elapsed_s: float) -> None: ...
    def scored(self, row: Row) -> None: ...


@dataclass(frozen=True)
class Options:
    """What to draw, and how to run it.

    Args:
        seed: Of the draw.
        count: How many mutations.
        output: The run's folder; None for one under the user's state directory.
        overwrite: Whether previous files may be removed.
        resume: Whether to go on with what an interrupted run left in `output`.
        bare: Whether each mutation runs without probes too, to see what it does.
        time_limit_s: Of each engine.
        keep_traces: Whether requests and drafts stay.
        side_by_side: See run_engines.Options.
        probes: What looks at each engine.
    """

    seed: int
    count: int
    output: Path | None = None
    overwrite: bool = False
    resume: bool = False
    bare: bool = True
    time_limit_s: float | None = None
    keep_traces: bool = False
    side_by_side: int | None = None
    probes: Probes = Probes.TRAP


def run_mutations(
    options: Options, diagnose: Diagnose, listener: Listener, command: Sequence[str] | None = None
) -> Matrix:
    """Run a draw and score it.

    Args:
        options: What to draw, and how to run it.
        diagnose: Asks the diagnosis.
        listener: Is told of it.
        command: Of the prefork process, for tests.

    Raises:
        OutputRefused, OutputUnwritable: see run_folder and RowsFile.
        EnvironmentLacks: no SGLang, a release that is not known, no toys, CUDA present, the import failed.
    """
    release = installed_or_base()
    drawn = draw(options.seed, options.count, release)
    models = model_arguments(E4B_TOYS)
    before = _resumed(options, release)
    missing = [mutation for mutation in drawn if before is None or mutation.number not in before.rows]
    clean = [
        started
        for started in _CLEAN
        if any((one.mtp, one.server) == started for one in drawn) and (before is None or started not in before.clean)
    ]
    if before is not None and not missing and not clean:
        return _matrix(options, drawn, before, str(options.output))
    names = (
        *(_CLEAN[started] for started in clean),
        *(name for mutation in missing for name in _names(mutation, options.bare)),
    )
    scoring = _Scoring(options, missing, diagnose, listener, before)

    def requests(place: Place) -> list[EngineRun]:
        scoring.begin(place.folder)
        runs = [_engine_run(place.folder, _CLEAN[started], models, started, None, options) for started in clean]
        runs += [
            _engine_run(place.folder, name, models, (mutation.mtp, mutation.server), mutation, options)
            for mutation in missing
            for name in _names(mutation, options.bare)
        ]
        return runs

    how = run_engines.Options(
        "mutations", names, options.output, options.overwrite or options.resume, options.side_by_side, command
    )
    engines = run_engines.run_engines(requests, how, scoring)
    if not options.keep_traces:
        remove_traces(engines.folder, names)
    return _matrix(options, drawn, scoring.file, str(engines.folder))


def _matrix(options: Options, drawn: Sequence[Mutation], file: RowsFile, folder: str) -> Matrix:
    rows = [file.rows[mutation.number] for mutation in drawn if mutation.number in file.rows]
    clean = tuple(file.clean.values())
    return matrix(options.seed, options.count, rows, clean, file.sglang_version, folder, options.probes)


def _resumed(options: Options, release: str) -> RowsFile | None:
    if not options.resume:
        return None
    if options.output is None:
        raise OutputRefused("--resume needs the folder of the run to resume", "name it with --output")
    file = RowsFile(options.output.expanduser(), options.seed, options.probes)
    file.read()
    if file.sglang_version != release:
        said = f"the rows in {options.output} are of SGLang {file.sglang_version}, and {release} is installed"
        raise OutputRefused(said, "resume it in its own environment, or name another --output")
    return file


class _Scoring:
    """Scores each mutation as soon as its engines have ended, and writes its row down."""

    def __init__(
        self,
        options: Options,
        mutations: Sequence[Mutation],
        diagnose: Diagnose,
        listener: Listener,
        before: RowsFile | None,
    ) -> None:
        self._options, self._diagnose, self._listener = options, diagnose, listener
        self._mutation_of = {name: one for one in mutations for name in _names(one, options.bare)}
        self._ended: list[Outcome] = []
        self._before = before
        self._release = ""
        self.waiting = listener.waiting

    def importing(self, sglang_version: str, folder: Path) -> None:
        """Say so, and keep the release for the file of rows."""
        self._release = sglang_version
        self._listener.importing(sglang_version, folder)

    def begin(self, folder: Path) -> None:
        """Begin the file of rows, or go on with it."""
        self.file = self._before or RowsFile(folder, self._options.seed, self._options.probes)
        if self._before is None:
            self.file.begin(self._release)

    def started(self, run: EngineRun) -> None:
        """Say so."""
        self._listener.started(run.request.arm, run.limit_s)

    def ended(self, outcome: Outcome) -> None:
        """Outcomes come in the order of the requests: the clean ones first, then each mutation's."""
        mutation = self._mutation_of.get(outcome.arm)
        if mutation is None:
            self.file.add_clean(self._clean(outcome))
            return
        self._ended.append(outcome)
        if len(self._ended) == len(_names(mutation, self._options.bare)):
            guarded, *bare = self._ended
            self._ended = []
            effect = effect_of(bare[0], self.file.clean[mutation.mtp, mutation.server]) if bare else None
            duration_s = round(guarded.duration_s + sum(one.duration_s for one in bare), 1)
            row = score(mutation, read_truth(guarded.folder), self._sight(guarded), effect, duration_s)
            self.file.add(row)
            self._listener.scored(row)

    def _sight(self, outcome: Outcome) -> Sight:
        entries = [entry for entry in DumpStore(outcome.dumps).list() if entry.manifest is not None]
        first = min((entry.created_utc.timestamp() for entry in entries), default=None)
        steps = read_step_times(outcome.folder / STEPS_NAME)
        return Sight(
            named=tuple(self._diagnose(outcome.dumps, outcome.log)),
            dumps=len(entries),
            first_step=None if first is None else step_at(steps, first),
            ending=ending_text(outcome),
        )

    def _clean(self, outcome: Outcome) -> Clean:
        sight = self._sight(outcome)
        result = outcome.result if outcome.ending is Ending.COMPLETED else None
        mtp, server = next(started for started, name in _CLEAN.items() if name == outcome.arm)
        return Clean(
            mtp=mtp,
            server=server,
            answers={} if result is None else {answer.prompt: answer.output_ids for answer in result.answers},
            accept_length=None if result is None else result.accept_length,
            named=sight.named,
            dumps=sight.dumps,
            ending=sight.ending,
        )


def _names(mutation: Mutation, bare: bool) -> tuple[str, ...]:
    return (mutation.name, mutation.name + BARE) if bare else (mutation.name,)


def _engine_run(
    folder: Path,
    name: str,
    models: Mapping[str, Any],
    started: tuple[bool, Server],
    mutation: Mutation | None,
    options: Options,
) -> EngineRun:
    probes = None if name.endswith(BARE) else options.probes
    request = ArmRequest(
        arm=name,
        folder=folder / name,
        # The same for all of them: a dump must not tell what was corrupted.
        command=["gemma4-triage", "repro", "mutations"],
        environment={**settings(probes, started[1]), "SGLANG_TRTLLM_MHA_DEBUG_DIR": str(folder / name / "dumps")},
        engine_arguments=engine_arguments(models, *started),
        prompts=LOAD.prompts(),
        new_tokens=LOAD.new_tokens(),
        stage_of=LOAD.stage_of(),
        pause_s=PAUSE_S,
        recorders=["steps", "mutator"],
        mutation=mutation,
    )
    return EngineRun(request, options.time_limit_s or TIME_LIMIT_S)
