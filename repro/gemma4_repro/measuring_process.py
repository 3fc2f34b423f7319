"""Runs a process that measures, with torch and SGLang, and reads its lines; ends one that is silent."""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemma4_repro.engine.parent_death import die_with_parent
from gemma4_repro.errors import EnvironmentLacks
from gemma4_repro.marked_lines import last_error, marked

# One that has said nothing for so long, or is that far past the end, is ended.
_SILENCE_S, _GRACE_S = 150.0, 60.0
Say = Callable[[str], None]


@dataclass
class Ended:
    """How a process ended.

    Attributes:
        code: its exit code.
        last_words: the line that says why.
        tail: the end of its stderr.
        interrupted: whether Ctrl-C ended it.
    """

    code: int = 0
    last_words: str = ""
    tail: str = ""
    interrupted: bool = False

    def why(self) -> str:
        """Say how it ended, for what is lost by that."""
        return f"the measuring process ended with {self.code}: {self.last_words}"

    def nothing_measured(self) -> EnvironmentLacks:
        """Return what to raise where this is all that there is."""
        hint = "the last lines above are the measuring process's"
        return EnvironmentLacks(f"nothing was measured\n{self.tail}", hint)


def run_measuring(
    command: Sequence[str],
    task: str,
    limit_s: float,
    heard: Callable[[dict[str, Any]], None],
    environment: Mapping[str, str] | None = None,
    silence_s: float | None = None,
) -> Ended:
    """Start it with `task` on its stdin; `heard` gets each result, with its kind, as soon as it is there.

    It is to look at the clock by itself; Ctrl-C ends it with what there is. Its environment is this process's if None;
    `silence_s` is how long it may say nothing.
    """
    parent, ended = os.getpid(), Ended()
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
            preexec_fn=lambda: die_with_parent(parent),
        )
        watch = _Watch(process, limit_s, silence_s or _SILENCE_S)
        try:
            _converse(process, task, heard, watch)
        except KeyboardInterrupt:
            ended.interrupted = True
        finally:
            watch.cancel()
            process.kill()
            ended.code = process.wait()
        errors.seek(0)
        ended.tail = errors.read()[-2000:].strip()
    ended.last_words = watch.why or last_error(ended.tail)
    return ended


class _Watch:
    """Kills a process that is silent for too long, or that does not find its end. why: which of them, or empty."""

    def __init__(self, process: subprocess.Popen[str], limit_s: float, silence_s: float) -> None:
        self._process, self._end, self.why = process, time.monotonic() + limit_s + _GRACE_S, ""
        self._silence_s = silence_s
        self.heard()

    def heard(self) -> None:
        left = self._end - time.monotonic()
        if hasattr(self, "_timer"):
            self._timer.cancel()
        why = f"no result for {self._silence_s:.0f} s" if left > self._silence_s else "out of time in a cell"
        self._timer = threading.Timer(max(0.0, min(left, self._silence_s)), self._kill, (why,))
        self._timer.daemon = True
        self._timer.start()

    def cancel(self) -> None:
        self._timer.cancel()

    def _kill(self, why: str) -> None:
        self.why = why
        self._process.kill()


def _converse(
    process: subprocess.Popen[str], task: str, heard: Callable[[dict[str, Any]], None], watch: _Watch
) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(task)
    process.stdin.close()
    for line in process.stdout:
        if (result := marked(line)) is not None:
            watch.heard()
            heard(result)
    process.wait()
