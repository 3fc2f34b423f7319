"""A server: started, asked, and ended with its whole session, whatever happens."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gemma4_repro.bench.arms import BenchArm
from gemma4_repro.bench.cores import cpu_seconds, session_members
from gemma4_repro.bench.server_arguments import command_words
from gemma4_repro.engine.log_exceptions import exceptions_in_file, last_lines
from gemma4_repro.engine.parent_death import die_with_parent
from gemma4_repro.errors import EnvironmentLacks

LOG_NAME = "server.log"
_LOG_LINES, _BRIEF_CHARACTERS = 15, 500
_GONE_S, _POLL_S = 30.0, 0.02
# SGLang's gRPC port is 10000 above its HTTP port; above 32767 the system hands out ports of its own choice.
_PORTS = range(22000, 32000, 40)


class ServerLost(Exception):
    """The server ended, does not answer, or answers with an error: with the end of its log.

    `brief` says it in one line: what its processes died of, or else the log's last line.
    """

    def __init__(self, what: str, log_path: Path) -> None:
        lines = last_lines(log_path, _LOG_LINES)
        end = "\n".join(f"    {line}" for line in lines)
        super().__init__(f"{what}; {log_path} ends:\n{end}")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
        if died_of := exceptions_in_file(log_path):
            last = f"{died_of[-1].type_name}: {died_of[-1].message}"
        self.brief = f"{what}; its log {log_path} says: {last[:_BRIEF_CHARACTERS]}"


class ServerProcess:
    """A server that is being started, in a session of its own. Call `close` in every case.

    Args:
        name: What it is called in messages.
        command: The command line that becomes the server.
        log_path: Where its output goes; what was there is overwritten.
        url: Where it will answer.
        environment: All of its environment.
        cores: The cores that it may run on; all of this process's if None.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log_path: Path,
        url: str,
        environment: Mapping[str, str],
        cores: set[int] | None = None,
    ) -> None:
        self.name, self.command, self.log_path, self.url = name, list(command), log_path, url
        parent = os.getpid()

        def prepare() -> None:
            die_with_parent(parent)
            if cores is not None:
                os.sched_setaffinity(0, cores)

        with self.log_path.open("w") as log:
            self._process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
                preexec_fn=prepare,
            )
        self._members: list[int] = []
        self._started = time.monotonic()
        self.start_s: float | None = None
        """Seconds from its launch until it answered for the first time."""

    def ended_with(self) -> int | None:
        """Return the exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def is_ready(self) -> bool:
        """Return whether /health answers. Raises ServerLost if the server has ended."""
        if self._process.poll() is not None:
            raise self.lost(f"ended with {self._process.returncode} before it was ready")
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                pass
        except (OSError, http.client.HTTPException):
            return False
        self._members = session_members(self._process.pid)
        if self.start_s is None:
            self.start_s = round(time.monotonic() - self._started, 2)
        return True

    def members(self) -> list[int]:
        """Return its processes' ids, as of its last answer."""
        return list(self._members)

    def ask(self, path: str, body: Any = None, timeout_s: float = 60) -> Any:
        """GET, or POST `body` as JSON; the answer's JSON, or its text. Raises ServerLost."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            raise self.lost(f"{path}: HTTP {error.code}: {_said(error)}") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self.lost(f"{path}: {error}") from error
        try:
            return json.loads(text)
        except ValueError:
            return text

    def cpu_s(self) -> float:
        """CPU time of all its processes so far, in seconds."""
        return cpu_seconds(self._members)

    def lost(self, what: str) -> ServerLost:
        return ServerLost(f"{self.name}: {what}", self.log_path)

    def kill(self) -> bool:
        """Kill every process of its session; whether there was one. A second call does nothing."""
        members = {*session_members(self._process.pid), *self._members}
        for member in members:
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        self._members = []
        return bool(members)

    def close(self) -> None:
        """Kill its processes and wait until they are gone: until then they hold their memory of the GPU."""
        deadline = time.monotonic() + _GONE_S
        while self.kill() and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        self._process.wait()


class BenchServer(ServerProcess):
    """One arm's server. copy: which of the arm's servers, from 1."""

    def __init__(
        self,
        arm: BenchArm,
        copy: int,
        folder: Path,
        arguments: Mapping[str, Any],
        environment: Mapping[str, str],
        cores: set[int],
        port: int,
    ) -> None:
        self.arm, self.copy, self.folder = arm, copy, folder
        words = command_words({**arguments, "port": port, "nccl_port": port + 20})
        command = [sys.executable, "-m", "sglang.launch_server", *words]
        url = f"http://127.0.0.1:{port}"
        super().__init__(server_name(arm, copy), command, folder / LOG_NAME, url, environment, cores)


def _said(error: urllib.error.HTTPError) -> str:
    """Return the beginning of a refusal's text; "" where the server breaks off before it."""
    try:
        return error.read().decode(errors="replace")[:300]
    except (OSError, http.client.HTTPException):
        return ""


def server_name(arm: BenchArm, copy: int) -> str:
    """Return the name of a server and of its folder: contain is the first of that arm, contain.2 the second."""
    return arm.id if copy == 1 else f"{arm.id}.{copy}"


def free_ports(count: int) -> list[int]:
    """Ports that are free now, together with those that SGLang derives from them. Raises EnvironmentLacks."""
    # A port stays free until its server is up, seconds later: two runs at a time must not begin at the same one.
    first = os.getpid() % len(_PORTS)
    candidates = [*_PORTS[first:], *_PORTS[:first]]
    found = [port for port in candidates if is_free(port) and is_free(port + 20)]
    if len(found) < count:
        raise EnvironmentLacks(
            f"{count} servers need ports from {_PORTS.start} to {_PORTS.stop}, and {len(found)} are free"
        )
    return found[:count]


def is_free(port: int) -> bool:
    """Return whether a server could have this port, and the one for gRPC that SGLang derives from it."""
    return _can_bind(port) and _can_bind(port + 10000)


def _can_bind(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
