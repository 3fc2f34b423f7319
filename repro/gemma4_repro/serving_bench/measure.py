"""Runs a plan, model by model: servers up, answers compared, then round by round."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gemma4_dumps.wording import number_of
from gemma4_repro.bench.arms import REFERENCE, REFERENCE_LOST
from gemma4_repro.bench.checkpoint import write_checkpoint
from gemma4_repro.bench.cores import split_cores
from gemma4_repro.bench.fleet import Fleet
from gemma4_repro.bench.server import BenchServer, ServerLost
from gemma4_repro.errors import EnvironmentLacks
from gemma4_repro.serving_bench.agree import (
    HOST_TOLERANCE,
    Told,
    answer_record,
    comparable,
    difference,
    same_tokens,
    tolerance,
)
from gemma4_repro.serving_bench.client import Burst, bodies_of, load_weights, run_burst, told_of
from gemma4_repro.serving_bench.loads import HOST_MODEL, Shape
from gemma4_repro.serving_bench.plan import LOADERS, ServingPlan, assistant_of, schedule, server_arguments
from gemma4_repro.step_bench.model_sizes import SIZES, VOCABULARY, assistant_text
from gemma4_repro.toys.locate import ASSISTANT_NAME, TARGET_NAME, toy_path

_BURST_LIMIT_S = 120
_START_SHARE = 0.75
"""Of a model's time. The first start on a machine compiles kernels."""
_ASKED, _ASKED_AT_ONCE = 4, 16
"""Requests of a shape whose answers are compared: of their first tokens, or of decode steps with as many rows."""
_HOST_VOCABULARY = 512


@dataclass
class Measured:
    """What was measured.

    Attributes:
        answers: of agree.answer_record.
        servers: per model and arm what its server says of itself.
        lost: per model and arm why it did not finish.
        partial: why rounds are missing, or empty.
    """

    bursts: list[Burst] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)
    servers: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    lost: dict[str, dict[str, str]] = field(default_factory=dict)
    partial: str = ""
    interrupted: bool = False


def run_plan(plan: ServingPlan, folder: Path, tell: Callable[[str], None]) -> Measured:
    """`tell` gets a line about what happens. Every server has ended when this returns or raises.

    Raises:
        OSError: the run's folder cannot be written.
        EnvironmentLacks: the toys are not there, or no free ports.
    """
    measured = Measured()
    ends = time.monotonic() + plan.limit_s
    own_cores, server_cores = split_cores()
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, own_cores)
    try:
        for position, model in enumerate(plan.models):
            now = time.monotonic()
            deadline = now + (ends - now) / (len(plan.models) - position)
            arguments = server_arguments(plan, _checkpoint(plan, model, folder))
            arms = plan.arms_of(model)
            tell(f"{model}: starting {number_of(len(arms), 'server')}")
            with Fleet(arms, 1, folder / model, arguments, plan.host_engine, server_cores, plan.gpus) as fleet:
                measured.lost[model] = fleet.lost
                _Model(plan, model, folder, fleet, deadline, measured, tell).run()
    except KeyboardInterrupt:
        measured.partial, measured.interrupted = "interrupted", True
    finally:
        os.sched_setaffinity(0, before)
    return measured


def _checkpoint(plan: ServingPlan, model: str, folder: Path) -> Path:
    """Return the model's, and its assistant's if servers draft."""
    try:
        if plan.host_engine:
            return toy_path(TARGET_NAME)
        size = SIZES[model]
        text = size.text_config(plan.layers_of(model))
        checkpoint = folder / "models" / model
        if plan.load.assistant:
            top = {"backbone_hidden_size": text["hidden_size"]}
            write_checkpoint(ASSISTANT_NAME, assistant_of(checkpoint), assistant_text(text), top)
        return write_checkpoint(TARGET_NAME, checkpoint, text, {"vision_config": _VISION} if plan.load.pictures else {})
    except FileNotFoundError as error:
        message, _, hint = str(error).rpartition("\n")
        raise EnvironmentLacks(message, hint) from error


# E2B's and E4B's tower: what Gemma4VisionConfig is by default.
_VISION = {"model_type": "gemma4_vision"}


class _Model:
    """The servers of one model, once started."""

    def __init__(
        self,
        plan: ServingPlan,
        model: str,
        folder: Path,
        fleet: Fleet,
        deadline: float,
        measured: Measured,
        tell: Callable[[str], None],
    ) -> None:
        self._plan, self._model, self._folder, self._fleet = plan, model, folder, fleet
        self._deadline, self._measured, self._tell = deadline, measured, tell
        self._started = time.monotonic()
        self._wall_s: dict[tuple[str, str], float] = {}

    def run(self) -> None:
        start_limit = self._started + _START_SHARE * (self._deadline - self._started)
        self._fleet.wait_until_ready(start_limit, lambda name: self._say(f"{name} is up"))
        if not self._plan.host_engine:
            self._everywhere(lambda server: load_weights(server, LOADERS["draw"]))
        for shape in self._plan.shapes:
            self._compare(shape)
        # Round 0 is thrown away: what is compiled at the first request of a size is compiled then.
        for number in range(self._plan.rounds + 1):
            if REFERENCE not in self._fleet.servers:
                self._stop(REFERENCE_LOST)
                break
            if not self._round(number):
                self._stop(f"time is up in round {number} of {self._plan.rounds}")
                break
            self._say(f"round {number} of {self._plan.rounds}" + (" (not counted)" if number == 0 else ""))
        self._measured.servers[self._model] = {}
        self._everywhere(self._ask_state)

    def _round(self, number: int) -> bool:
        """Return False if the time is up."""
        bodies = {shape.id: bodies_of(shape, number, self._folder) for shape in self._plan.shapes}
        for shape, name in schedule(self._plan, tuple(self._fleet.servers), number):
            left_s = self._deadline - time.monotonic()
            if left_s < self._wall_s.get((name, shape.id), 1):
                return False
            if (server := self._fleet.servers.get(name)) is None:
                continue
            try:
                burst = run_burst(server, self._model, shape, number, bodies[shape.id], min(left_s, _BURST_LIMIT_S))
            except ServerLost as error:
                self._drop(name, error)
                continue
            self._wall_s[name, shape.id] = burst.wall_s
            if number > 0:
                self._measured.bursts.append(burst)
        return True

    def _compare(self, shape: Shape) -> None:
        """Answers of all arms to the same requests, and the reference's with moved norms."""
        bodies = bodies_of(shape, 0, self._folder)[: _ASKED if shape.compared == 1 else _ASKED_AT_ONCE]
        vocabulary = _HOST_VOCABULARY if self._model == HOST_MODEL else VOCABULARY
        told: dict[str, list[Told]] = {}

        def ask(server: BenchServer) -> None:
            told[server.name] = told_of(server, shape, bodies, vocabulary, _BURST_LIMIT_S)

        self._everywhere(ask)
        if REFERENCE not in told:
            return
        limit = HOST_TOLERANCE if self._plan.host_engine else tolerance(self._moved(ask, told))
        for arm in self._plan.arms:
            if arm.id in told:
                found = difference(*comparable(told[arm.id], told[REFERENCE]))
                same = sum(map(same_tokens, told[arm.id], told[REFERENCE]))
                asked = shape.compared * len(bodies)
                record = answer_record(self._model, shape.id, arm.id, found, limit)
                self._measured.answers.append(record | {"same_tokens": [same, asked] if bodies else None})

    def _moved(self, ask: Callable[[BenchServer], None], told: dict[str, list[Told]]) -> float | None:
        still, reference = told[REFERENCE], self._fleet.servers[REFERENCE]
        try:
            load_weights(reference, LOADERS["move_norms"])
            ask(reference)
            load_weights(reference, LOADERS["draw"])
        except ServerLost as error:
            self._drop(REFERENCE, error)
            return None
        moved, told[REFERENCE] = told[REFERENCE], still
        return difference(*comparable(moved, still))

    def _ask_state(self, server: BenchServer) -> None:
        (state,) = server.ask("/server_info")["internal_states"]
        kept = ("memory_usage", "gemma4_triage_paths", "gemma4_triage_pools", "gemma4_triage_drafts")
        told = {name: state[name] for name in kept if name in state}
        self._measured.servers[self._model][server.name] = told | {
            "start_s": server.start_s,
            "device_memory_bytes": None if self._plan.host_engine else device_memory_of(server.members()),
        }

    def _everywhere(self, call: Callable[[BenchServer], None]) -> None:
        """Call it on all servers at once; those that fail are lost."""

        def one(server: BenchServer) -> ServerLost | None:
            try:
                call(server)
            except ServerLost as error:
                return error
            return None

        servers = list(self._fleet.servers.values())
        with ThreadPoolExecutor(len(servers) or 1) as pool:
            for server, error in zip(servers, pool.map(one, servers), strict=True):
                if error is not None:
                    self._drop(server.name, error)

    def _drop(self, name: str, error: ServerLost) -> None:
        self._fleet.drop(name, str(error))
        self._say(f"lost {error}")

    def _stop(self, why: str) -> None:
        self._measured.partial = "; ".join(filter(None, [self._measured.partial, f"{self._model}: {why}"]))
        self._say(why)

    def _say(self, text: str) -> None:
        self._tell(f"{self._model}, {time.monotonic() - self._started:.0f} s: {text}")


def device_memory_of(processes: Iterable[int]) -> int | None:
    """Return the bytes of GPUs that these processes hold; None if the driver is silent."""
    try:
        import pynvml
    except ImportError:
        return None
    wanted = set(processes)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        held = [
            process.usedGpuMemory
            for number in range(pynvml.nvmlDeviceGetCount())
            for process in pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(number))
            if process.pid in wanted
        ]
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()
    known = [bytes_held for bytes_held in held if bytes_held is not None]
    return sum(known) if known else None
