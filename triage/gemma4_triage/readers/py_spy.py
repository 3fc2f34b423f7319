"""Stacks that `py-spy dump` printed: where each process stood, and which one holds up the others.

A file has one process or several, each headed by "Process 123: command" and "Python v3.11", below what a shell or a
script said; or it is JSON, as `--json` writes it. A stack alone is no sign of a fault: a healthy scheduler stands
somewhere too. The processes are held against each other where there are several.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic_core import from_json

from gemma4_dumps.errors import DumpUnreadable
from gemma4_dumps.safe_file import as_unreadable, read_regular
from gemma4_triage.finding import Confidence, Evidence, Finding
from gemma4_triage.logs.facts import Place, Stack
from gemma4_triage.logs.rule import COLLECT
from gemma4_triage.readers.reading import MAX_FACTS, Identity, NotThis, Reading, cut
from gemma4_triage.readers.text_file import Lines

KIND = "py-spy"
HANG = "hang"
MAX_PROCESSES = 64
MAX_BYTES = 64 * 1024**2
_FRAMES = 12
MAX_JSON_BYTES = 4 * 1024**2
"""Of `py-spy dump --json`: parsed, a file takes fifty times its size in memory."""
_HEAD = re.compile(rb"^Process \d+: (?:.*\n){1,40}?Python v\d", re.MULTILINE)
# A log that quotes stacks, as SGLang's watchdog prints them, is a log.
_LOG = re.compile(rb"Pyspy dump for PID|server_args=|^\[?\d{4}-\d\d-\d\d", re.MULTILINE)
_PROCESS = re.compile(r"Process (\d{1,10}): (.*)")
_THREAD = re.compile(r'Thread (?:0x)?\w+ \((\w+(?:\+gil)?)\)(?:: "(.*)")?')
_FRAME = re.compile(r"\s+(\S.{0,160}?) \(([^()]{1,200})\)\s*$")
_SCHEDULER = re.compile(r"sglang::scheduler(?:_(\S+))?|scheduler\.py")


@dataclass
class Process:
    """One process of the file: its main thread's frames as "file:line function", the innermost first."""

    pid: int
    command: str
    line: int
    frames: list[str] = field(default_factory=list)
    threads: int = 0
    state: str = ""

    @property
    def is_scheduler(self) -> bool:
        """Return whether it runs a scheduler's loop, by its title or its frames."""
        loop = any("scheduler" in frame and "event_loop" in frame for frame in self.frames)
        return loop or bool(_SCHEDULER.search(self.command))

    @property
    def stack(self) -> Stack:
        """Return its main thread as logs have it."""
        found = _SCHEDULER.search(self.command)
        rank = (found[1] if found and found[1] else "") or f"process {self.pid}"
        return Stack(Place(self.line), rank, tuple(self.frames))


def takes(head: bytes) -> bool:
    """Return whether a file begins with what py-spy prints of a process."""
    start = head.lstrip()[:4096]
    if start.startswith(b"["):
        return b'"thread_id"' in start and b'"owns_gil"' in start
    return _HEAD.search(start) is not None and _LOG.search(start) is None


def read(paths: Sequence[Path]) -> Iterator[Reading]:
    """Yield one reading of all files of a folder, since ranks are told apart by each other. Raises NotThis."""
    found: list[tuple[Path, Process]] = []
    problems: list[str] = []
    for path in paths:
        if _is_json(path):
            found += [(path, process) for process in _of_json(path)]
            continue
        lines = Lines(path, MAX_BYTES)
        found += [(path, process) for process in processes(lines)]
        problems += [f"{path.name} {lines.problem}"] if lines.problem else []
    if not found:
        raise NotThis
    schedulers = [(path, process) for path, process in found if process.is_scheduler]
    name = str(paths[0] if len(paths) == 1 else paths[0].parent)
    yield Reading(
        name=name,
        kind=KIND,
        title=f"stacks of {len(found)} process{'es' * (len(found) != 1)}, {len(schedulers)} of them schedulers",
        identity=Identity(pids=tuple(process.pid for _, process in found)),
        facts=tuple(_fact(process) for _, process in (schedulers or found)[:MAX_FACTS]),
        findings=tuple(_findings(name, [process for _, process in schedulers])),
        problem="; ".join(problems),
    )


def processes(lines: Lines) -> list[Process]:
    """Return the processes that a file tells of, at most MAX_PROCESSES."""
    found: list[Process] = []
    main = False
    for number, line in lines:
        if match := _PROCESS.match(line):
            if len(found) == MAX_PROCESSES:
                break
            found.append(Process(int(match[1]), cut(match[2]), number))
            main = False
        elif found and (match := _THREAD.match(line)):
            process = found[-1]
            process.threads += 1
            # Of all threads the main one holds the loop; without names the first one is it.
            main = match[2] == "MainThread" or (match[2] is None and process.threads == 1)
            process.state = match[1] if main else process.state
        elif found and main and len(found[-1].frames) < _FRAMES and (match := _FRAME.match(line)):
            found[-1].frames.append(f"{match[2]} {match[1]}")
    return found


def _is_json(path: Path) -> bool:
    with as_unreadable(path), open(path, "rb") as file:
        return file.read(64).lstrip().startswith(b"[")


def _of_json(path: Path) -> list[Process]:
    """Return the processes of `py-spy dump --json`, which names threads and no command. Raises DumpUnreadable."""
    try:
        threads = from_json(read_regular(path, MAX_JSON_BYTES), allow_inf_nan=False)
    except ValueError as error:
        raise DumpUnreadable(f"{path.name} is damaged: {error}") from error
    found: dict[int, Process] = {}
    for thread in threads if isinstance(threads, list) else ():
        pid = thread.get("pid") if isinstance(thread, dict) else None
        if not isinstance(pid, int) or (pid not in found and len(found) == MAX_PROCESSES):
            continue
        process = found.setdefault(pid, Process(pid, "", 1))
        process.threads += 1
        if thread.get("thread_name") == "MainThread" and not process.frames:
            frames = thread.get("frames")
            listed = [one for one in frames if isinstance(one, dict)] if isinstance(frames, list) else []
            process.frames = [cut(_frame(one)) for one in listed[:_FRAMES]]
            process.state = "active" if thread.get("active") is True else "idle"
    return list(found.values())


def _frame(fields: dict) -> str:
    place = f"{fields.get('short_filename') or fields.get('filename')}:{fields.get('line')}"
    return f"{place} {fields.get('name')}"


def _fact(process: Process) -> tuple[str, str]:
    # Most evidence has no stacks, and what tells of them takes time to import.
    from gemma4_triage.logs.rules.hang import where

    place = f", in {where(process.stack)}" if process.frames else ""
    return f"process {process.pid}", f"{process.state}{place}: {'; '.join(process.frames[:3]) or 'no frame'}"


def _findings(name: str, schedulers: Sequence[Process]) -> Iterator[Finding]:
    """Yield what the stacks of several ranks say together; one alone says nothing."""
    stacks = [process.stack for process in schedulers if process.frames]
    if len(stacks) < 2:
        return
    from gemma4_triage.logs.rules.hang import judge, where

    told = judge(stacks)
    if told is None:
        return
    cause, advice = told
    yield Finding(
        rule=HANG,
        cause=cause,
        confidence=Confidence.POSSIBLE,
        evidence=tuple(
            Evidence(
                source=name,
                field=f"line {stack.place.line}",
                value="; ".join(stack.frames[:3]),
                meaning=f"{stack.rank}: in {where(stack)}",
            )
            for stack in stacks[:8]
        ),
        ruled_out_if=("the server answers: ranks of a healthy one stand in different places too",),
        advice=advice,
        next_commands=(COLLECT,),
    )
