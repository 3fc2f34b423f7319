"""Runs a scenario's arms, one after the other, and judges them. The engine runs in other processes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gemma4_repro.arm_request import REQUEST_NAME, ArmRequest, read_phase
from gemma4_repro.catalog import choose_arms
from gemma4_repro.collect import collect
from gemma4_repro.errors import OutputUnwritable
from gemma4_repro.host_environment import hermetic_environment
from gemma4_repro.outcome import Outcome
from gemma4_repro.parity.pictures import make_pictures, remove_pictures
from gemma4_repro.readiness import check_sglang, model_arguments, refuse_cuda
from gemma4_repro.run_folder import disk_is_full, prepare_run_folder, remove_traces, writing
from gemma4_repro.scenario import Arm, Scenario
from gemma4_repro.staged_workload import StagedWorkload, at_once
from gemma4_repro.supervisor import Supervisor
from gemma4_repro.verdict import ArmVerdict, judge
from gemma4_repro.workloads import Workload
from gemma4_runtime.settings import INCLUDE


class Listener(Protocol):
    """Is told how a run comes along. `waiting` is called several times a second and should be quick."""

    def importing(self, sglang_version: str, folder: Path) -> None: ...
    def arm_started(self, arm: Arm, limit_s: float) -> None: ...
    def waiting(self, phase: str | None, elapsed_s: float) -> None: ...
    def arm_ended(self, arm: Arm, outcome: Outcome) -> None: ...


@dataclass(frozen=True)
class Options:
    """arms: by id, all if empty. time_limit_s: per arm, None for each arm's own.

    typed: what a user types to run the arm, if that is not `repro`. include: GEMMA4_TRIAGE_INCLUDE of arms with probes.
    """

    arms: tuple[str, ...] = ()
    output: Path | None = None
    overwrite: bool = False
    keep_traces: bool = False
    time_limit_s: float | None = None
    typed: tuple[str, ...] = ()
    include: str | None = None


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
    release = check_sglang()
    models = model_arguments(scenario.toys)
    names = tuple(arm.id for arm in arms)
    folder = prepare_run_folder(scenario.id, names, options.output, options.overwrite)
    environment = hermetic_environment()
    outcomes: dict[str, Outcome] = {}

    def tick() -> None:
        listener.waiting("importing sglang", time.monotonic() - began)

    with writing(folder), Supervisor(folder / "prefork.txt", environment, command) as supervisor:
        listener.importing(release, folder)
        with_pictures = any(arm.workload is None for arm in arms)
        seeing, seen = models, {}
        if with_pictures:
            toy, load = make_pictures(folder, environment, tick)
            seeing = models | {"model_path": str(toy)}
            seen = {
                "prompts": load.prompts,
                "new_tokens": load.new_tokens,
                "texts": load.texts,
                "pictures": load.pictures,
            }
        ready = supervisor.wait_ready(tick=tick)
        refuse_cuda(ready)
        for arm in arms:
            toys, sent = (models, _texts(arm.workload)) if arm.workload else (seeing, seen)
            outcomes[arm.id] = _run_arm(supervisor, scenario.id, arm, folder / arm.id, toys, sent, options, listener)
    verdicts = judge(scenario, outcomes)
    _refuse_full_disk(folder, verdicts)
    if not options.keep_traces:
        remove_traces(folder, names)
        if with_pictures:
            remove_pictures(folder)
    return Run(scenario, folder, release, time.monotonic() - began, float(ready["import_s"]), verdicts)


def _texts(workload: Workload | StagedWorkload) -> dict[str, Any]:
    """Return the fields of an arm's request that hold a load without images."""
    load = workload if isinstance(workload, StagedWorkload) else at_once(workload)
    return {
        "prompts": load.prompts(),
        "new_tokens": load.new_tokens(),
        "stage_of": load.stage_of(),
        "aborted": dict(load.aborted),
    }


def _run_arm(
    supervisor: Supervisor,
    scenario_id: str,
    arm: Arm,
    folder: Path,
    models: Mapping[str, Any],
    sent: Mapping[str, Any],
    options: Options,
    listener: Listener,
) -> Outcome:
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
    (folder / REQUEST_NAME).write_text(request.model_dump_json(), encoding="utf-8")
    limit_s = options.time_limit_s or arm.time_limit_s
    listener.arm_started(arm, limit_s)
    began = time.monotonic()

    def tick() -> None:
        phase = read_phase(folder)
        listener.waiting(phase.value if phase else None, time.monotonic() - began)

    outcome = collect(arm.id, folder, supervisor.run(folder, limit_s, tick), limit_s)
    listener.arm_ended(arm, outcome)
    return outcome


def _environment(arm: Arm, folder: Path, include: str | None) -> dict[str, str]:
    environment = {**arm.environment, "SGLANG_TRTLLM_MHA_DEBUG_DIR": str(folder / "dumps")}
    # Without probes there is no dump to include anything in, and the runtime refuses to be asked.
    return environment | ({INCLUDE: include} if include and arm.has_probes else {})


def _refuse_full_disk(folder: Path, verdicts: tuple[ArmVerdict, ...]) -> None:
    """A surprise on a full disk says nothing about the engine. Raises OutputUnwritable."""
    for verdict in verdicts:
        full = any("No space left on device" in raised.message for raised in verdict.outcome.raised)
        if verdict.surprised and (full or disk_is_full(folder)):
            raise OutputUnwritable(
                f"{folder}: the disk became full while arm {verdict.arm.id} ran, so nothing can be said about it",
                "free some space or name another --output",
            )
