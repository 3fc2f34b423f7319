"""Starts and ends the prefork process and the arms below it. Imports neither torch nor sglang."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemma4_repro.engine.log_exceptions import last_lines
from gemma4_repro.errors import PreforkFailed

START_LIMIT_S = 180.0
_TICK_S = 0.2
_KILL_LIMIT_S = 10.0


@dataclass(frozen=True)
class ArmExit:
    """exit_code is None where a signal ended the process. duration_s: from the fork to the end of its group."""

    exit_code: int | None
    signal_name: str | None
    timed_out: bool
    duration_s: float


@dataclass
class _Arm:
    """An arm that runs. ends: when (monotonic) it is killed, or once it was, when its end has to be known."""

    pid: int
    began: float
    ends: float
    timed_out: bool = False


def prefork_command() -> list[str]:
    """Return the command line of the process that imports SGLang and forks arms."""
    return [sys.executable, "-m", "gemma4_repro.engine.prefork", str(os.getpid())]


class Supervisor:
    """A context manager around one prefork process. On leaving, by whatever way, no process of it is left."""

    def __init__(self, log: Path, environment: Mapping[str, str], command: Sequence[str] | None = None) -> None:
        self._log = log
        self._environment = dict(environment)
        self._command = list(command or prefork_command())
        self._process: subprocess.Popen[bytes] | None = None
        self._arms: dict[Path, _Arm] = {}
        self._ended: list[tuple[Path, ArmExit]] = []
        self._buffer = b""
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> Supervisor:
        # SGLang leaves its sockets' files in the temporary folder when it ends; here they go with the folder.
        self._scratch = tempfile.TemporaryDirectory(prefix="gemma4-repro-", ignore_cleanup_errors=True)
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C on the terminal reaches the runner alone, which then ends the others.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment | {"TMPDIR": self._scratch.name},
                start_new_session=True,
            )
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def wait_ready(self, limit_s: float = START_LIMIT_S, tick: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Say what the prefork process says of itself once SGLang is imported.

        Raises:
            PreforkFailed: it ended, or said nothing in time; the text holds the end of its log.
        """
        message = self._read(time.monotonic() + limit_s, tick)
        if message is None:
            raise self._failed(f"SGLang was not imported within {limit_s:.0f} s")
        return message

    def run(self, folder: Path, limit_s: float, tick: Callable[[], None] = lambda: None) -> ArmExit:
        """Fork an arm for `folder` while no other runs, and wait for its end. Raises like `start` and `wait`."""
        self.start(folder, limit_s, tick)
        return self.wait(tick)[1]

    def start(self, folder: Path, limit_s: float, tick: Callable[[], None] = lambda: None) -> None:
        """Fork an arm for `folder`, which is killed after `limit_s`.

        Raises:
            PreforkFailed: the prefork process ended, or did not react.
        """
        self._send({"folder": str(folder)})
        began = time.monotonic()
        while (message := self._read(began + _KILL_LIMIT_S, tick)) is not None:
            if message["event"] == "started":
                self._arms[folder] = _Arm(int(message["pid"]), began, began + limit_s)
                return
            self._note_end(message)
        raise self._failed("no arm was started")

    def wait(self, tick: Callable[[], None] = lambda: None) -> tuple[Path, ArmExit]:
        """Return the folder of the next arm that has ended, and how: by itself, or killed because its limit had passed.

        Raises:
            PreforkFailed: the prefork process ended, or did not react.
        """
        while not self._ended:
            message = self._read(min(arm.ends for arm in self._arms.values()), tick)
            if message is not None:
                self._note_end(message)
            else:
                self._kill_late()
        return self._ended.pop(0)

    def _note_end(self, message: dict[str, Any]) -> None:
        folder = Path(message["folder"])
        arm = self._arms.pop(folder)
        duration_s = time.monotonic() - arm.began
        self._ended.append((folder, ArmExit(message["exit_code"], message["signal"], arm.timed_out, duration_s)))

    def _kill_late(self) -> None:
        for arm in self._arms.values():
            if time.monotonic() < arm.ends:
                continue
            if arm.timed_out:
                raise self._failed("an arm that passed its time limit could not be ended")
            _kill_group(arm.pid)
            arm.timed_out, arm.ends = True, time.monotonic() + _KILL_LIMIT_S

    def close(self) -> None:
        """End the arms that run, and the prefork process. Safe to call twice."""
        for arm in self._arms.values():
            _kill_group(arm.pid)
        self._arms = {}
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            # Still importing, or stuck. It leads its own group, and what it forked dies with it.
            _kill_group(process.pid)
            process.wait(timeout=_KILL_LIMIT_S)
        if process.stdout is not None:
            process.stdout.close()
        if self._scratch is not None:
            self._scratch.cleanup()

    def _send(self, message: dict[str, Any]) -> None:
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise self._failed("the process that imports SGLang has ended") from None

    def _read(self, limit: float, tick: Callable[[], None]) -> dict[str, Any] | None:
        """Return the next message; None once `limit` (monotonic) has passed. Raises PreforkFailed."""
        process = self._running()
        assert process.stdout is not None
        while b"\n" not in self._buffer:
            left = limit - time.monotonic()
            if left <= 0:
                return None
            readable, _, _ = select.select([process.stdout], [], [], min(left, _TICK_S))
            tick()
            if readable:
                chunk = os.read(process.stdout.fileno(), 65536)
                if not chunk:
                    raise self._failed("the process that imports SGLang has ended")
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the supervisor is used outside its `with` block")
        return self._process

    def _failed(self, what: str) -> PreforkFailed:
        tail = "\n".join(f"  {line}" for line in last_lines(self._log, 15))
        return PreforkFailed(f"{what}; its log ends with:\n{tail or '  (nothing)'}", f"the whole log: {self._log}")


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
