"""Runs an SGLang HTTP server on loopback for a test, and leaves nothing of it behind."""

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

START_LIMIT_S = 150


def free_port() -> int:
    """Return a free port below 55536: SGLang takes the port 10000 above it for gRPC."""
    # It stays free until the server is up, seconds later, so each of the processes that share the tests has its own.
    first = 21000 + 200 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    for port in range(first, first + 200):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError(f"no free port from {first} to {first + 199}")


def flags(arguments: Mapping[str, Any]) -> list[str]:
    """Engine arguments as command-line words; True is a bare flag."""
    words = []
    for name, value in arguments.items():
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(str(value))
    return words


def session_members(session: int) -> list[int]:
    """Processes of a session, without zombies. Field 6 of /proc/PID/stat; the name before it may hold anything."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, sid = path.read_text().rpartition(")")[2].split()[:4]
            if int(sid) == session and state != "Z":
                found.append(int(path.parent.name))
    return found


@contextlib.contextmanager
def running_server(
    command: Sequence[str | Path], port: int, environment: Mapping[str, str], log_path: Path
) -> Iterator[subprocess.Popen]:
    """Start `command`, wait until /health answers, and end its whole session afterwards."""
    with log_path.open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=dict(environment), start_new_session=True
        )
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                    break
            except (urllib.error.URLError, OSError):
                text = log_path.read_text(errors="replace")
                assert process.poll() is None, text[-4000:]
                assert time.monotonic() < deadline, text[-4000:]
                time.sleep(0.5)
        yield process
    finally:
        for member in session_members(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(member, signal.SIGKILL)
        process.wait()
