"""Runs a plan: servers up, warm, then round by round, until the plan or the time is over."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from gemma4_dumps.wording import number_of
from gemma4_repro.bench.arms import REFERENCE, REFERENCE_LOST
from gemma4_repro.bench.burst import Burst, run_burst
from gemma4_repro.bench.checkpoint import SIZES, make_pair
from gemma4_repro.bench.cores import split_cores
from gemma4_repro.bench.fleet import Fleet
from gemma4_repro.bench.plan import Plan, schedule
from gemma4_repro.bench.server import BenchServer, ServerLost
from gemma4_repro.bench.server_arguments import cuda_arguments, host_arguments
from gemma4_repro.errors import EnvironmentLacks
from gemma4_repro.toys.locate import ASSISTANT_NAME, TARGET_NAME, toy_path

_BURST_LIMIT_S = 90
_WARM_LIMIT_S = 200
# A server that hangs while it starts must not take the time of those that are up.
_START_SHARE = 0.6
SLOW = 3
"""An arm that takes SLOW times the reference's time gets short bursts, and sits out rounds until it has had SLOW times
the reference's time in all: it would leave the others none."""


@dataclass
class Measured:
    """What was measured.

    Attributes:
        lost: per MTP setting ("mtp on", "mtp off") and server why it did not finish.
        partial: why rounds are missing, or empty.
        idle_cores: per burst, cores' worth of CPU time that all other servers took together.
    """

    bursts: list[Burst] = field(default_factory=list)
    lost: dict[str, dict[str, str]] = field(default_factory=dict)
    partial: str = ""
    idle_cores: list[float] = field(default_factory=list)
    interrupted: bool = False


def run_plan(plan: Plan, folder: Path, tell: Callable[[str], None]) -> Measured:
    """`tell` gets a line about what happens now. Every server has ended when this returns or raises.

    Raises:
        OSError: the run's folder cannot be written.
        EnvironmentLacks: the toys are not there, or no free ports.
    """
    measured = Measured()
    ends = time.monotonic() + plan.limit_s
    pair = _checkpoints(plan, folder)
    make_arguments = host_arguments if plan.host_engine else cuda_arguments
    own_cores, server_cores = split_cores()
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, own_cores)
    try:
        for position, mtp in enumerate(plan.mtp):
            now = time.monotonic()
            deadline = now + (ends - now) / (len(plan.mtp) - position)
            name = _phase(mtp)
            arguments = make_arguments(pair, mtp, plan.batches)
            tell(f"{name}: starting {number_of(len(plan.arms) * plan.copies, 'server')}")
            subfolder = folder / name.replace(" ", "-")
            with Fleet(plan.arms, plan.copies, subfolder, arguments, plan.host_engine, server_cores) as fleet:
                measured.lost[name] = fleet.lost
                _Phase(plan, mtp, fleet, deadline, measured, tell).run()
    except KeyboardInterrupt:
        measured.partial, measured.interrupted = "interrupted", True
    finally:
        os.sched_setaffinity(0, before)
    return measured


def _checkpoints(plan: Plan, folder: Path) -> tuple[Path, Path]:
    try:
        return (
            (toy_path(TARGET_NAME), toy_path(ASSISTANT_NAME))
            if plan.host_engine
            else make_pair(folder / "models", SIZES[plan.size])
        )
    except FileNotFoundError as error:
        message, _, hint = str(error).rpartition("\n")
        raise EnvironmentLacks(message, hint) from error


def _phase(mtp: bool) -> str:
    return "mtp on" if mtp else "mtp off"


class _Phase:
    """One MTP setting: servers that have been started, to bursts."""

    def __init__(
        self, plan: Plan, mtp: bool, fleet: Fleet, deadline: float, measured: Measured, tell: Callable[[str], None]
    ) -> None:
        self._plan, self._mtp, self._fleet, self._deadline = plan, mtp, fleet, deadline
        self._measured, self._tell = measured, tell
        self._started = time.monotonic()
        self._wall_s: dict[tuple[str, int], float] = {}
        self._spent_s: dict[str, float] = {}
        self._slow: set[str] = set()

    def run(self) -> None:
        start_limit = self._started + _START_SHARE * (self._deadline - self._started)
        self._fleet.wait_until_ready(start_limit, lambda name: self._say(f"{name} is up"))
        self._warm_up()
        self._say(f"warm: {', '.join(self._fleet.servers)}")
        # Round 0 is thrown away: each arm alone for the first time. It tells which arms are slow.
        for number in range(self._plan.rounds + 1):
            if REFERENCE not in self._fleet.servers:
                self._stop(REFERENCE_LOST)
                return
            for batch, name in schedule(self._plan, self._servers_of(number), number):
                if time.monotonic() + self._wall_s.get((name, batch), 0) > self._deadline:
                    self._stop(f"time is up in round {number} of {self._plan.rounds}")
                    return
                self._measure(number, batch, name)
            if number == 0:
                self._find_slow()
            self._say(f"round {number} of {self._plan.rounds}" + (" (not counted)" if number == 0 else ""))

    def _servers_of(self, number: int) -> tuple[str, ...]:
        limit_s = SLOW * self._spent_s.get(REFERENCE, 0)
        return tuple(name for name in self._fleet.servers if number <= 1 or self._spent_s.get(name, 0) <= limit_s)

    def _find_slow(self) -> None:
        first = self._plan.batches[0]
        reference_s = self._wall_s.get((REFERENCE, first), 0)
        self._slow = {name for name in self._fleet.servers if self._wall_s.get((name, first), 0) > SLOW * reference_s}
        if self._slow:
            self._say(f"slow, hence fewer and shorter bursts: {', '.join(sorted(self._slow))}")

    def _measure(self, number: int, batch: int, name: str) -> None:
        if name not in self._fleet.servers:
            return
        others_s, started = self._fleet.cpu_s_of_others(name), time.monotonic()
        burst = self._burst(self._fleet.servers[name], number, batch)
        if burst is None:
            return
        idle = (self._fleet.cpu_s_of_others(name) - others_s) / (time.monotonic() - started)
        self._wall_s[name, batch] = burst.wall_s
        if number > 0:
            self._spent_s[name] = self._spent_s.get(name, 0) + burst.wall_s
            self._measured.bursts.append(burst)
            self._measured.idle_cores.append(idle)

    def _warm_up(self) -> None:
        """Warm all servers at once: what is compiled now is compiled by each process for itself."""
        with ThreadPoolExecutor(len(self._fleet.servers) or 1) as pool:
            list(pool.map(self._warm_one, list(self._fleet.servers.values())))

    def _warm_one(self, server: BenchServer) -> None:
        for batch in self._plan.batches:
            if server.name in self._fleet.servers:
                self._burst(server, 0, batch, _WARM_LIMIT_S)

    def _burst(self, server: BenchServer, number: int, batch: int, limit_s: float = _BURST_LIMIT_S) -> Burst | None:
        plan = self._plan
        new_tokens = plan.tokens(self._mtp, short=number == 0 or server.name in self._slow)
        limit_s = max(1.0, min(limit_s, self._deadline - time.monotonic()))
        try:
            return run_burst(server, self._mtp, batch, number, plan.prompt_tokens, new_tokens, limit_s)
        except ServerLost as error:
            self._fleet.drop(server.name, str(error))
            self._say(f"lost {error}")
            return None

    def _stop(self, why: str) -> None:
        self._measured.partial = "; ".join(filter(None, [self._measured.partial, f"{_phase(self._mtp)}: {why}"]))
        self._say(why)

    def _say(self, text: str) -> None:
        self._tell(f"{_phase(self._mtp)}, {time.monotonic() - self._started:.0f} s: {text}")
