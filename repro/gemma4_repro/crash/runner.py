"""Runs a cell: its server, then SGLang's own client for one load after the other, and stops at the first of its limits.

The run stops when every load has been answered, the server has ended, the client has failed, neither log has grown for
`stall_s`, or the time is up. By whatever way it stops, no process of it is left.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gemma4_repro.bench.server import ServerLost, ServerProcess
from gemma4_repro.crash.loads import Load, Size
from gemma4_repro.crash.outcome import Served, ServedLoad
from gemma4_repro.engine.arm_request import LOG_NAME
from gemma4_repro.engine.log_exceptions import exceptions_in_file
from gemma4_repro.engine.outcome import Ending
from gemma4_repro.engine.parent_death import die_with_parent

_TICK_S = 0.2
# A scheduler that raises is followed by its whole server within seconds; SGLang waits five before that.
_DEATH_S = 20.0
# After the last answer the scheduler looks for leaks, and dies of one.
_IDLE_S = 1.0
_FLUSH_LIMIT_S = 60.0


@dataclass(frozen=True)
class Limits:
    """start_s: until the server answers. load_s: for each load. stall_s: without a word in any log."""

    start_s: float
    load_s: float
    stall_s: float


REAL = Limits(start_s=1800, load_s=3600, stall_s=600)
TOY = Limits(start_s=300, load_s=600, stall_s=300)


@dataclass(frozen=True)
class Client:
    """A load, how much of it is asked for, and the client's command line, which writes `result`."""

    load: Load
    size: Size
    command: tuple[str, ...]
    result: Path


@dataclass(frozen=True)
class Plan:
    """Everything that a run starts. folder: for the logs and for what the client measures."""

    cell_id: str
    folder: Path
    url: str
    server_command: tuple[str, ...]
    server_environment: Mapping[str, str]
    clients: tuple[Client, ...]
    client_environment: Mapping[str, str]
    limits: Limits


@dataclass
class _Stopped(Exception):
    """Why the run stopped before every load was answered."""

    why: str
    ending: Ending
    loads: list[ServedLoad] = field(default_factory=list)


def run_cell(plan: Plan, tick: Callable[[str, float], None] = lambda phase, elapsed_s: None) -> Served:
    """Run the server and every load, and return how that ended.

    Args:
        plan: What to start.
        tick: Is told several times a second what goes on and for how many seconds already.
    """
    began = time.monotonic()
    log = plan.folder / LOG_NAME
    server = ServerProcess(plan.cell_id, plan.server_command, log, plan.url, plan.server_environment)
    loads: list[ServedLoad] = []
    try:
        _wait_ready(server, plan, tick)
        for client in plan.clients:
            _run_client(server, client, plan, loads, tick)
        _check_alive(server)
        ending, stop = Ending.COMPLETED, "every load was answered"
        if any(load.answered != load.requests for load in loads):
            stop = "the client ended"
        problem = None
    except _Stopped as stopped:
        ending, stop = stopped.ending, stopped.why
        problem = None if ending in (Ending.CRASHED, Ending.DIED_AT_START) else stopped.why
    finally:
        code = server.ended_with()
        server.close()
    return Served(
        arm=plan.cell_id,
        ending=ending,
        folder=plan.folder,
        duration_s=time.monotonic() - began,
        exit_code=code if code is not None and code >= 0 else None,
        signal_name=signal.Signals(-code).name if code is not None and code < 0 else None,
        raised=exceptions_in_file(log),
        result=None,
        problem=problem,
        loads=tuple(loads),
        stop=stop,
    )


def _wait_ready(server: ServerProcess, plan: Plan, tick: Callable[[str, float], None]) -> None:
    began = time.monotonic()
    quiet = _Quiet([server.log_path], plan.limits.stall_s)
    while True:
        elapsed_s = time.monotonic() - began
        tick("server starting", elapsed_s)
        try:
            if server.is_ready():
                return
        except ServerLost:
            raise _Stopped("the server ended before it was ready", Ending.DIED_AT_START) from None
        if elapsed_s > plan.limits.start_s:
            raise _Stopped(f"the server did not answer within {plan.limits.start_s:.0f} s", Ending.TIMED_OUT)
        quiet.check("while the server started")
        time.sleep(_TICK_S)


def _run_client(
    server: ServerProcess, client: Client, plan: Plan, loads: list[ServedLoad], tick: Callable[[str, float], None]
) -> None:
    """Append what became of the load to `loads`. Raises _Stopped if the run cannot go on."""
    began, log = time.monotonic(), plan.folder / f"client_{client.load.id}.txt"
    # The client appends to it.
    client.result.unlink(missing_ok=True)
    process = _start(client.command, log, plan.client_environment)
    quiet = _Quiet([server.log_path, log], plan.limits.stall_s)
    try:
        while process.poll() is None and server.ended_with() is None:
            elapsed_s = time.monotonic() - began
            tick(f"load {client.load.id}", elapsed_s)
            if elapsed_s > plan.limits.load_s:
                raise _Stopped(f"load {client.load.id} was not done in {plan.limits.load_s:.0f} s", Ending.TIMED_OUT)
            quiet.check(f"in load {client.load.id}")
            time.sleep(_TICK_S)
        if process.poll() not in (None, 0):
            _wait_for_death(server)
        if server.ended_with() is not None:
            raise _Stopped(f"the server ended in load {client.load.id}", Ending.CRASHED)
        if process.returncode:
            why = f"the client ended with exit code {process.returncode} in load {client.load.id}; see {log.name}"
            raise _Stopped(why, Ending.NO_RESULT)
    finally:
        code = process.poll()
        _kill(process)
        loads.append(_served(client, code, time.monotonic() - began))


def _start(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    parent = os.getpid()
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(parent),
        )


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _wait_for_death(server: ServerProcess) -> None:
    """Wait a while for the server's end: the client is the first to fail of it."""
    limit = time.monotonic() + _DEATH_S
    while server.ended_with() is None and time.monotonic() < limit:
        time.sleep(_TICK_S)


def _check_alive(server: ServerProcess) -> None:
    """Ask once more: the idle scheduler looks for leaks. Raises _Stopped if it died of one."""
    time.sleep(_IDLE_S)
    try:
        server.ask("/flush_cache?timeout=5", {}, _FLUSH_LIMIT_S)
    except ServerLost:
        _wait_for_death(server)
        if server.ended_with() is None:
            raise _Stopped("the server no longer answers after its loads", Ending.NO_RESULT) from None
    if server.ended_with() is not None:
        raise _Stopped("the server ended when it had nothing left to do", Ending.CRASHED)


def _served(client: Client, code: int | None, duration_s: float) -> ServedLoad:
    result = _last_result(client.result) if code == 0 else None
    answered = None if result is None else result.get("completed")
    length = None if result is None else result.get("accept_length")
    return ServedLoad(
        id=client.load.id,
        requests=client.size.requests,
        answered=answered if isinstance(answered, int) else None,
        duration_s=duration_s,
        exit_code=code,
        accept_length=float(length) if isinstance(length, int | float) and length else None,
    )


def _last_result(path: Path) -> dict[str, object] | None:
    """Return the last line of the client's JSONL file; None if there is none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
    except (OSError, ValueError, IndexError):
        return None
    return found if isinstance(found, dict) else None


class _Quiet:
    """Notices that logs no longer grow."""

    def __init__(self, logs: Sequence[Path], limit_s: float) -> None:
        self._logs, self._limit_s = logs, limit_s
        self._size, self._since = -1, time.monotonic()

    def check(self, when: str) -> None:
        """Raise _Stopped if no log has grown for the limit."""
        size = sum(log.stat().st_size for log in self._logs)
        if size != self._size:
            self._size, self._since = size, time.monotonic()
        elif time.monotonic() - self._since > self._limit_s:
            raise _Stopped(f"no log grew for {self._limit_s:.0f} s {when}", Ending.TIMED_OUT)
