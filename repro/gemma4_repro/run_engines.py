"""Runs engines for whoever asks: scenarios, the corpus and comparisons. They build the requests and judge the outcomes.

One process imports SGLang and forks every engine. Where cores and memory allow it, two engines run side by side. Each
computes with one thread, and neither what it leaves nor the order in which ends are told depends on the other. How long
it takes does, so nobody may compare the times of engines that ran side by side.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gemma4_repro.engine.arm_request import REQUEST_NAME, ArmRequest, read_phase
from gemma4_repro.engine.collect import collect
from gemma4_repro.engine.host_environment import hermetic_environment
from gemma4_repro.engine.outcome import Outcome
from gemma4_repro.engine.readiness import check_sglang, refuse_cuda
from gemma4_repro.engine.run_folder import prepare_run_folder, runs_root, writing
from gemma4_repro.engine.supervisor import Supervisor
from gemma4_repro.errors import OutputRefused

MOST_SIDE_BY_SIDE = 2
ENGINE_PEAK_BYTES = 2 * 1024**3
"""More than an engine of a toy takes of its own, beside what it shares with the process that it was forked from."""


@dataclass(frozen=True)
class EngineRun:
    """An engine to run: what is asked of its process, and how long that may take."""

    request: ArmRequest
    limit_s: float


@dataclass(frozen=True)
class Place:
    """Where a run's files go, and the environment that its processes start in.

    Args:
        folder: of the whole run; the folder of each engine lies in it, by its name.
        environment: for further processes beside the engines.
        tick: to be called several times a second while something else is waited for.
    """

    folder: Path
    environment: dict[str, str]
    tick: Callable[[], None]


class Listener(Protocol):
    """Is told how the engines come along, in the order of the requests.

    `waiting` is called several times a second and should be quick. It gets the phase of each engine that runs, None
    where it has none yet, by name; nothing runs while SGLang is imported. elapsed_s: of the oldest of them.
    """

    def importing(self, sglang_version: str, folder: Path) -> None: ...
    def started(self, run: EngineRun) -> None: ...
    def waiting(self, phases: dict[str, str | None], elapsed_s: float) -> None: ...
    def ended(self, outcome: Outcome) -> None: ...


@dataclass(frozen=True)
class Options:
    """How engines are run.

    Args:
        title: names the folder of the run where `output` does not.
        names: of the engines, each a folder in the run's.
        output: the run's folder; None for one under the user's state directory.
        overwrite: whether previous files of these engines may be removed.
        side_by_side: how many engines may run at once; None for what the machine has room for.
        command: of the process that imports SGLang, for tests.
    """

    title: str
    names: tuple[str, ...]
    output: Path | None = None
    overwrite: bool = False
    side_by_side: int | None = None
    command: Sequence[str] | None = None


@dataclass(frozen=True)
class Engines:
    """What a run came to. import_s: how long the one import of SGLang took. outcomes: in the order of the requests."""

    folder: Path
    sglang_version: str
    import_s: float
    outcomes: tuple[Outcome, ...]


def run_engines(requests: Callable[[Place], Sequence[EngineRun]], options: Options, listener: Listener) -> Engines:
    """Run an engine for each request.

    Args:
        requests: makes them while SGLang is imported, since that takes seconds.
        options: how they are run.
        listener: is told of it.

    Raises:
        OutputRefused, OutputUnwritable: see run_folder.
        EnvironmentLacks: no SGLang, a release that is not known, CUDA present, or the import failed.
    """
    began = time.monotonic()
    _refuse_other_than_unicode(options.output)
    release = check_sglang()
    folder = prepare_run_folder(options.title, options.names, options.output, options.overwrite)
    environment = hermetic_environment()

    def tick() -> None:
        listener.waiting({}, time.monotonic() - began)

    with writing(folder), Supervisor(folder / "prefork.txt", environment, options.command) as supervisor:
        listener.importing(release, folder)
        runs = requests(Place(folder, environment, tick))
        ready = supervisor.wait_ready(tick=tick)
        refuse_cuda(ready)
        places = options.side_by_side or room_side_by_side(len(os.sched_getaffinity(0)), _available_bytes())
        outcomes = _run_all(supervisor, runs, places, listener)
    return Engines(folder, release, float(ready["import_s"]), outcomes)


def _refuse_other_than_unicode(output: Path | None) -> None:
    """Raise OutputRefused for a folder that JSON cannot name: an engine is told of its folder in JSON."""
    folder = os.fsencode(os.path.realpath((output or runs_root()).expanduser()))
    try:
        folder.decode()
    except UnicodeDecodeError as error:
        said = f"{folder.decode(errors='replace')} cannot be a run's folder: its name is not UTF-8"
        raise OutputRefused(said, "name another directory with --output") from error


def room_side_by_side(cores: int, available_bytes: int) -> int:
    """Return how many engines may run at once: each needs a core and ENGINE_PEAK_BYTES; at most MOST_SIDE_BY_SIDE."""
    return max(1, min(MOST_SIDE_BY_SIDE, cores, available_bytes // ENGINE_PEAK_BYTES))


def _available_bytes() -> int:
    """Return what may be taken without swapping, as the kernel reckons; 0 where it does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), 0)


def _run_all(supervisor: Supervisor, runs: Sequence[EngineRun], places: int, listener: Listener) -> tuple[Outcome, ...]:
    """Keep `places` engines running until all have ended; an end is told once all before it have been."""
    left = list(runs)
    running: dict[Path, EngineRun] = {}
    started_at: dict[Path, float] = {}
    ended: dict[Path, Outcome] = {}
    told: list[Outcome] = []

    def tick() -> None:
        oldest = min((started_at[folder] for folder in running), default=time.monotonic())
        phases = {run.request.arm: _phase(folder) for folder, run in running.items()}
        listener.waiting(phases, time.monotonic() - oldest)

    while left or running:
        while left and len(running) < places:
            run = left.pop(0)
            folder = run.request.folder
            (folder / REQUEST_NAME).write_text(run.request.model_dump_json(), encoding="utf-8")
            listener.started(run)
            running[folder], started_at[folder] = run, time.monotonic()
            supervisor.start(folder, run.limit_s, tick)
        folder, end = supervisor.wait(tick)
        run = running.pop(folder)
        ended[folder] = collect(run.request.arm, folder, end, run.limit_s)
        while len(told) < len(runs) and (outcome := ended.get(runs[len(told)].request.folder)):
            told.append(outcome)
            listener.ended(outcome)
    return tuple(told)


def _phase(folder: Path) -> str | None:
    phase = read_phase(folder)
    return phase.value if phase else None
