"""A plugin of coverage: a process that another one kills with SIGKILL writes what it has run first.

Engines end their schedulers so, and prefork what is left of an arm. Whoever kills sends a signal of our own before,
whose handler writes the data, waits until it is written, and kills then, so that every exit status is what it is
elsewhere. A process that kills itself by os.kill, or that is stopped, or does not answer in time, is killed as it is.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import coverage

_SAVE = signal.SIGRTMAX - 3
"""Nothing else uses it."""
_LIMIT_S = 3.0
_POLL_S = 0.005

_kill, _killpg = os.kill, os.killpg
_save_data = coverage.Coverage.save
_installed = False


def coverage_init(registry: Any, options: Any) -> None:
    """Listen to the signal and change os.kill and os.killpg; coverage calls it in every process, in forked ones too."""
    global _installed
    if threading.current_thread() is threading.main_thread():
        signal.signal(_SAVE, _save)
    if not _installed:
        os.kill, os.killpg = _save_and_kill, _save_and_kill_group
        coverage.Coverage.save = _save_without_a_signal
        _installed = True


def _save_without_a_signal(measured: coverage.Coverage) -> None:
    """Write the data, as a process does at its end too, and let a signal that comes meanwhile wait for it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {_SAVE})
    try:
        _save_data(measured)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _save(*_: object) -> None:
    try:
        if (measured := coverage.Coverage.current()) is not None:
            measured.save()
    finally:
        # That it is no longer caught tells the other process that the data is written.
        signal.signal(_SAVE, signal.SIG_IGN)


def _save_and_kill(pid: int, number: int) -> None:
    if number == signal.SIGKILL and pid == os.getpid():
        # SGLang ends its own tree through psutil. Who calls os.kill for it is a test, and wants to be gone at once.
        if sys._getframe(1).f_globals.get("__name__", "").startswith("psutil"):
            _save()
    elif number == signal.SIGKILL and pid > 0:
        _have_saved([pid])
    _kill(pid, number)


def _save_and_kill_group(group: int, number: int) -> None:
    if number == signal.SIGKILL:
        _have_saved([pid for pid in _processes() if pid != os.getpid() and _group_of(pid) == group])
    _killpg(group, number)


def _processes() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _group_of(pid: int) -> int | None:
    with contextlib.suppress(OSError):
        return os.getpgid(pid)
    return None


def _field(pid: int, name: str) -> str:
    """Return a field of the kernel's status of a process; empty for one that is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith(f"{name}:"):
                return line.partition(":")[2].strip()
    return ""


def _listens(pid: int) -> bool:
    caught = int(_field(pid, "SigCgt") or "0", 16)
    return bool(caught >> (_SAVE - 1) & 1) and _field(pid, "State")[:1] not in ("T", "t", "Z", "X")


def _have_saved(pids: list[int]) -> None:
    """Ask these processes for their data and wait until each has written it, has ended, or has had its time."""
    limit = time.monotonic() + _LIMIT_S
    asked = [pid for pid in pids if _listens(pid)]
    for pid in asked:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            _kill(pid, _SAVE)
    _wait_until(lambda: not any(_listens(pid) for pid in asked), limit)


def _wait_until(done: Callable[[], bool], limit: float) -> None:
    while not done() and time.monotonic() < limit:
        time.sleep(_POLL_S)
