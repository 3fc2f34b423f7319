"""All arms' servers at once: started together, waited for, ended together."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from gemma4_repro.bench.arms import BenchArm
from gemma4_repro.bench.server import BenchServer, ServerLost, free_ports
from gemma4_repro.bench.server_environment import server_environment

_POLL_S = 0.5


class Fleet:
    """A context manager: leaving it kills every server, whatever happened.

    cores: every server may use all of these. servers: those that run, by arm. lost: why the others do not.
    """

    def __init__(
        self,
        arms: tuple[BenchArm, ...],
        folder: Path,
        arguments: dict[str, Any],
        host_engine: bool,
        cores: set[int],
    ) -> None:
        self._arms, self._folder, self._arguments = arms, folder, arguments
        self._host_engine, self._cores = host_engine, cores
        self.servers: dict[str, BenchServer] = {}
        self.lost: dict[str, str] = {}

    def __enter__(self) -> Fleet:
        try:
            self._start()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._close()

    def wait_until_ready(self, deadline: float, ready: Callable[[str], None]) -> None:
        """Until every server answers or is lost. deadline: of time.monotonic(); `ready` hears of each one."""
        waiting = list(self.servers)
        while waiting:
            for arm in list(waiting):
                try:
                    if self.servers[arm].is_ready():
                        waiting.remove(arm)
                        ready(arm)
                except ServerLost as error:
                    waiting.remove(arm)
                    self.drop(arm, str(error))
            if waiting and time.monotonic() > deadline:
                for arm in waiting:
                    self.drop(arm, str(self.servers[arm].lost("was not ready in time")))
                return
            time.sleep(_POLL_S)

    def drop(self, arm: str, why: str) -> None:
        """Go on without this arm."""
        self.lost[arm] = why
        self.servers.pop(arm).close()

    def cpu_s_of_others(self, arm: str) -> float:
        """CPU time so far of all servers but this arm's, in seconds."""
        return sum(server.cpu_s() for name, server in self.servers.items() if name != arm)

    def _start(self) -> None:
        for arm, port in zip(self._arms, free_ports(len(self._arms)), strict=True):
            folder = self._folder / arm.id
            folder.mkdir(mode=0o700, parents=True)
            environment = server_environment(arm, folder, self._host_engine)
            self.servers[arm.id] = BenchServer(arm, folder, self._arguments, environment, self._cores, port)

    def _close(self) -> None:
        for server in self.servers.values():
            server.close()
        self.servers = {}
