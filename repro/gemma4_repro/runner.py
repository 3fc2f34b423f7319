"""Runs a scenario's arms and judges them. The engine runs in other processes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gemma4_repro import run_engines
from gemma4_repro.catalog import choose_arms
from gemma4_repro.engine.arm_request import ArmRequest
from gemma4_repro.engine.outcome import Outcome
from gemma4_repro.engine.readiness import model_arguments
from gemma4_repro.engine.run_folder import FREE_SPACE, disk_is_full
from gemma4_repro.errors import OutputUnwritable
from gemma4_repro.parity.pictures import make_pictures, remove_pictures
from gemma4_repro.recorders.catalog import remove_traces
from gemma4_repro.run_engines import EngineRun, Place
from gemma4_repro.scenario import Arm, Scenario
from gemma4_repro.staged_workload import StagedWorkload, at_once
from gemma4_repro.verdict import ArmVerdict, judge
from gemma4_repro.workloads import Workload
from gemma4_runtime.settings import INCLUDE


class Listener(Protocol):
    """Is told how a run comes along. waiting: see run_engines.Listener."""

    def importing(self, sglang_version: str, folder: Path) -> None: ...
    def arm_started(self, arm: Arm, limit_s: float) -> None: ...
    def waiting(self, phases: dict[str, str | None], elapsed_s: float) -> None: ...
    def arm_ended(self, arm: Arm, outcome: Outcome) -> None: ...


@dataclass(frozen=True)
class Options:
    """How a scenario is run.

    Attributes:
        arms: by id, all if empty.
        time_limit_s: per arm, None for each arm's own.
        typed: what a user types to run the arm, if that is not `repro`.
        include: GEMMA4_TRIAGE_INCLUDE of arms with probes.
        side_by_side: see run_engines.Options.
    """

    arms: tuple[str, ...] = ()
    output: Path | None = None
    overwrite: bool = False
    keep_traces: bool = False
    time_limit_s: float | None = None
    typed: tuple[str, ...] = ()
    include: str | None = None
    side_by_side: int | None = None


@dataclass(frozen=True)
class Run:
    """A finished run. import_s: how long the one import of SGLang took, part of duration_s."""

    scenario: Scenario
    folder: Path
    sglang_version: str
    duration_s: float
    import_s: float
    verdicts: tuple[ArmVerdict, ...]


def run_scenario(scenario: Scenario, options: Options, listener: Listener, command: Sequence[str] | None = None) -> Run:
    """Run the chosen arms and judge them. command: of the prefork process, for tests.

    Raises:
        UnknownName: an arm that the scenario does not have.
        OutputRefused, OutputUnwritable: see run_folder.
        EnvironmentLacks: no SGLang, a release that is not known, no toys, CUDA present, the import failed, or pictures
            could not be made.
    """
    began = time.monotonic()
    arms = choose_arms(scenario, options.arms)
    models = model_arguments(scenario.toys)
    names = tuple(arm.id for arm in arms)
    with_pictures = any(arm.workload is None for arm in arms)

    def requests(place: Place) -> list[EngineRun]:
        seeing, seen = models, {}
        if with_pictures:
            toy, load = make_pictures(place.folder, place.environment, place.tick)
            seeing = models | {"model_path": str(toy)}
            seen = {
                "prompts": load.prompts,
                "new_tokens": load.new_tokens,
                "texts": load.texts,
                "pictures": load.pictures,
            }
        loads = [(models, _texts(arm.workload)) if arm.workload else (seeing, seen) for arm in arms]
        return [
            _engine_run(scenario.id, arm, place.folder / arm.id, toys, sent, options)
            for arm, (toys, sent) in zip(arms, loads, strict=True)
        ]

    how = run_engines.Options(
        scenario.id, names, options.output, options.overwrite, options.side_by_side, command=command
    )
    engines = run_engines.run_engines(requests, how, _ToldOfArms(scenario, listener))
    verdicts = judge(scenario, {outcome.arm: outcome for outcome in engines.outcomes})
    _refuse_full_disk(engines.folder, verdicts)
    if not options.keep_traces:
        remove_traces(engines.folder, names)
        if with_pictures:
            remove_pictures(engines.folder)
    duration_s = time.monotonic() - began
    return Run(scenario, engines.folder, engines.sglang_version, duration_s, engines.import_s, verdicts)


class _ToldOfArms:
    """Tells a scenario's listener of arms what `run_engines` tells of engines."""

    def __init__(self, scenario: Scenario, listener: Listener) -> None:
        self._scenario, self._listener = scenario, listener
        self.importing, self.waiting = listener.importing, listener.waiting

    def started(self, run: EngineRun) -> None:
        self._listener.arm_started(self._scenario.arm(run.request.arm), run.limit_s)

    def ended(self, outcome: Outcome) -> None:
        self._listener.arm_ended(self._scenario.arm(outcome.arm), outcome)


def _texts(workload: Workload | StagedWorkload) -> dict[str, Any]:
    """Return the fields of an arm's request that hold a load without images."""
    load = workload if isinstance(workload, StagedWorkload) else at_once(workload)
    return {
        "prompts": load.prompts(),
        "new_tokens": load.new_tokens(),
        "stage_of": load.stage_of(),
        "aborted": dict(load.aborted),
    }


def _engine_run(
    scenario_id: str, arm: Arm, folder: Path, models: Mapping[str, Any], sent: Mapping[str, Any], options: Options
) -> EngineRun:
    included = [f"--include-{word}" for word in options.include.split(",")] if options.include else []
    request = ArmRequest(
        arm=arm.id,
        folder=folder,
        command=[*(options.typed or ("gemma4-triage", "repro", scenario_id, "--arm", arm.id)), *included],
        environment=_environment(arm, folder, options.include),
        engine_arguments={**arm.engine_arguments, **models},
        **sent,
        one_by_one=arm.one_by_one,
    )
    return EngineRun(request, options.time_limit_s or arm.time_limit_s)


def _environment(arm: Arm, folder: Path, include: str | None) -> dict[str, str]:
    environment = {**arm.environment, "SGLANG_TRTLLM_MHA_DEBUG_DIR": str(folder / "dumps")}
    # Without probes there is no dump to include anything in, and the runtime refuses to be asked.
    return environment | ({INCLUDE: include} if include and arm.has_probes else {})


def _refuse_full_disk(folder: Path, verdicts: tuple[ArmVerdict, ...]) -> None:
    """Refuse a verdict on a full disk, where a surprise says nothing about the engine. Raises OutputUnwritable."""
    for verdict in verdicts:
        full = any("No space left on device" in raised.message for raised in verdict.outcome.raised)
        if verdict.surprised and (full or disk_is_full(folder)):
            raise OutputUnwritable(
                f"{folder}: the disk became full while arm {verdict.arm.id} ran, so nothing can be said about it",
                FREE_SPACE,
            )
