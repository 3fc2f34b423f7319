"""All servers of all arms at once: started together, waited for, ended together."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

from gemma4_repro.bench.arms import BenchArm
from gemma4_repro.bench.server import BenchServer, ServerLost, free_ports, server_name
from gemma4_repro.bench.server_environment import server_environment

_POLL_S = 0.5


class Fleet:
    """A context manager: leaving it kills every server, whatever happened.

    copies: servers of each arm. cores: every server may use all of these. gpus: the servers take turns on so many; with
    one they run where this process would. servers: those that run, by name. lost: why the others do not.
    """

    def __init__(
        self,
        arms: tuple[BenchArm, ...],
        copies: int,
        folder: Path,
        arguments: dict[str, Any],
        host_engine: bool,
        cores: set[int],
        gpus: int = 1,
    ) -> None:
        self._plan = [(arm, copy) for copy in range(1, copies + 1) for arm in arms]
        self._folder, self._arguments = folder, arguments
        self._host_engine, self._cores, self._gpus = host_engine, cores, gpus
        self.servers: dict[str, BenchServer] = {}
        self.lost: dict[str, str] = {}

    def __enter__(self) -> Fleet:
        # Whatever interrupts the start, servers that have started do not go on.
        with ExitStack() as unless_all_started:
            unless_all_started.callback(self._close)
            self._start()
            unless_all_started.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._close()

    def wait_until_ready(self, deadline: float, ready: Callable[[str], None]) -> None:
        """Wait until every server answers or is lost. deadline: of time.monotonic(); `ready` hears of each one."""
        waiting = list(self.servers)
        while waiting:
            for name in list(waiting):
                try:
                    if self.servers[name].is_ready():
                        waiting.remove(name)
                        ready(name)
                except ServerLost as error:
                    waiting.remove(name)
                    self.drop(name, str(error))
            if waiting and time.monotonic() > deadline:
                for name in waiting:
                    self.drop(name, str(self.servers[name].lost("was not ready in time")))
                return
            time.sleep(_POLL_S)

    def drop(self, name: str, why: str) -> None:
        """Go on without this server."""
        self.lost[name] = why
        self.servers.pop(name).close()

    def cpu_s_of_others(self, name: str) -> float:
        """CPU time so far of all servers but this one, in seconds."""
        return sum(server.cpu_s() for other, server in self.servers.items() if other != name)

    def _start(self) -> None:
        for number, ((arm, copy), port) in enumerate(zip(self._plan, free_ports(len(self._plan)), strict=True)):
            name = server_name(arm, copy)
            folder = self._folder / name
            folder.mkdir(mode=0o700, parents=True)
            environment = server_environment(arm, folder, self._host_engine)
            if self._gpus > 1:
                environment["CUDA_VISIBLE_DEVICES"] = gpu_of(number, self._gpus, environment)
            arguments = {**self._arguments, **arm.arguments}
            self.servers[name] = BenchServer(arm, copy, folder, arguments, environment, self._cores, port)

    def _close(self) -> None:
        for server in self.servers.values():
            server.kill()
        for server in self.servers.values():
            server.close()
        self.servers = {}


def gpu_of(number: int, gpus: int, environment: Mapping[str, str]) -> str:
    """Return which GPU a server has, by its place among them: the first ones that this process may use, in turn."""
    visible = environment.get("CUDA_VISIBLE_DEVICES", "")
    names = [name for name in visible.split(",") if name] or [str(index) for index in range(gpus)]
    return names[number % min(gpus, len(names))]
