"""The bundle of `gemma4-triage collect`: whose it is, and whether the server answered.

Dumps, manifests, logs and stacks in it are read as what they are; this reader says that they are of one server, since
`collect` took them from one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from pydantic_core import from_json

from gemma4_dumps.errors import DumpError, DumpUnreadable
from gemma4_dumps.safe_file import read_regular
from gemma4_triage.finding import Confidence, Evidence, Finding
from gemma4_triage.logs.start_line import LONGEST_VALUE
from gemma4_triage.readers import py_spy
from gemma4_triage.readers.reading import SERVE_GUARDED, Identity, Moment, NotThis, Reading, cut
from gemma4_triage.readers.text_file import Lines

KIND, NAME = "collection", "collect.json"
RULE, TITLE = "server-not-answering", "a server was gone, or did not answer, when a bundle was made of it"
FOLDERS = frozenset({"http", "process", "gpu"})
"""Folders of a bundle that hold nothing but what this reader looks at."""
MAX_BYTES = 16 * 1024**2
_WAITS_FOR_SCHEDULER = ("/server_info", "/health")
_MAX_PROCESSES = 256
_KIND = re.compile(rb'"kind"\s*:\s*"collection"')


class _State(NamedTuple):
    """What the kernel said of a process that neither ran nor slept: its letter, and its words with where it waited."""

    path: Path
    pid: int
    title: str
    letter: str
    words: str

    @property
    def who(self) -> str:
        """Return it as a sentence begins."""
        return f"Process {self.pid}, {self.title}," if self.title else f"Process {self.pid}"


def takes(head: bytes) -> bool:
    """Return whether a file begins as the document of a bundle does."""
    return head[:1] == b"{" and _KIND.search(head[:400]) is not None


def read(paths: Sequence[Path]) -> Iterator[Reading]:
    """Yield a reading for each bundle's document. Raises NotThis, DumpUnreadable."""
    for path in paths:
        yield _read(path)


def _read(path: Path) -> Reading:
    fields = _object(path)
    if fields is None:
        raise DumpUnreadable(f"{path.name} is damaged: it begins as a bundle's document does, and is no whole one")
    if not isinstance(fields.get("processes", []), list):
        raise NotThis
    folder = path.parent
    info = _object(folder / "http" / "server_info.json") or {}
    model = _object(folder / "http" / "model_info.json") or {}
    created = _seconds(fields.get("created_utc"))
    states = _states(folder, [one for one in fields.get("processes", []) if isinstance(one, dict)])
    running = [one for one in fields.get("processes", []) if isinstance(one, dict)]
    pids = [pid for one in running if isinstance(pid := one.get("pid"), int)]
    pids += [pid for pid in (fields.get("pid"),) if isinstance(pid, int) and pid not in pids]
    begins = [time for one in running if isinstance(time := one.get("started_s"), int | float)]
    moments = [Moment(min(begins), "the server's first process started", "processes")] if begins else []
    moments.append(Moment(created, "this bundle was made", "created_utc"))
    settings = {str(name): str(value) for name, value in info.items() if isinstance(value, str | int | float | list)}
    settings |= {"model_path": str(model["model_path"])} if isinstance(model.get("model_path"), str) else {}
    command = fields.get("command")
    return Reading(
        name=str(path),
        kind=KIND,
        title=f"a bundle of {cut(str(fields.get('url') or fields.get('pid')))}, {len(running)} processes",
        identity=Identity(
            pids=tuple(pids),
            running=tuple(pid for one in running if isinstance(pid := one.get("pid"), int)),
            host=str(fields.get("host") or ""),
            command=tuple(map(str, command)) if isinstance(command, list) else (),
            settings={name: value for name, value in settings.items() if len(value) <= LONGEST_VALUE},
            release=str(info.get("version") or ""),
            folder=str(folder),
        ),
        moments=tuple(moments),
        facts=(*_facts(fields), *((f"process {one.pid}", one.words) for one in states[:8])),
        findings=tuple(_findings(path, fields, running, states)),
    )


def _object(path: Path) -> dict[str, Any] | None:
    try:
        value = from_json(read_regular(path, MAX_BYTES), allow_inf_nan=False)
    except (DumpError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _seconds(time: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(time)).timestamp()
    except (ValueError, OverflowError):
        return None


def _requests(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = fields.get("http")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _states(folder: Path, running: Sequence[Mapping[str, Any]]) -> list[_State]:
    """Return the processes of the bundle that neither ran nor slept, by what it has of each."""
    titles = {pid: str(one.get("title") or "") for one in running if isinstance(pid := one.get("pid"), int)}
    found = []
    for path in sorted((folder / "process").glob("*.json"))[:_MAX_PROCESSES]:
        fields = _object(path) or {}
        status, pid = fields.get("status"), fields.get("pid")
        said = str(status.get("State") or "") if isinstance(status, dict) else ""
        if not isinstance(pid, int) or said[:1] not in ("T", "t", "D", "Z", "X"):
            continue
        # Python's helper beside each server holds up nobody.
        if "resource_tracker" in titles.get(pid, ""):
            continue
        place = str(status.get("wchan") or "") if isinstance(status, dict) else ""
        words = f"{said}, in {place}" if said[0] == "D" and place not in ("", "0") else said
        # Of a launcher's whole command its first words tell which process it is.
        title = " ".join(titles.get(pid, "").strip("()").split()[:3])
        found.append(_State(path, pid, cut(title), said[0], cut(words)))
    return found


def _facts(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for one in _requests(fields):
        said = one.get("problem") or f"HTTP {one.get('status')} in {one.get('took_s')} s"
        yield cut(str(one.get("path"))), cut(str(said))
    items = fields.get("items")
    lacking = [one for one in items if isinstance(one, dict) and not one.get("ok")] if isinstance(items, list) else []
    for one in [one for one in lacking if not str(one.get("name")).startswith("http/")][:8]:
        yield f"not in it: {cut(str(one.get('name')))}", cut(str(one.get("problem")))


def _findings(
    path: Path, fields: Mapping[str, Any], running: Sequence[Mapping[str, Any]], states: Sequence[_State]
) -> Iterator[Finding]:
    asked = _requests(fields)
    waiting = [one for one in asked if one.get("path") in _WAITS_FOR_SCHEDULER]
    silent = [one for one in waiting if one.get("status") is None or one.get("status") == 503]
    answered = [one for one in asked if one.get("status") is not None]
    name = str(path)
    again = f"gemma4-triage collect {shlex.quote(str(fields.get('url') or fields.get('pid')))}"
    if isinstance(foreign := fields.get("not_sglang"), str) and foreign:
        cause = f"What answered at that address was no server of SGLang: {cut(foreign)}."
        pieces = [_evidence(name, at, one) for at, one in enumerate(asked)][:2]
        yield _finding(cause, pieces, ("collect from the address that the server itself listens on",), SERVE_GUARDED)
    elif not running and fields.get("was_running") is False:
        cause = "The server was gone when the bundle was made: there was no such process."
        piece = Evidence(source=name, field="was_running", value=False, meaning=f"process {fields.get('pid')}")
        yield _finding(cause, [piece], ("its log says what it died of: add it with --log",), SERVE_GUARDED)
    elif not asked and states and len(ended := [one for one in states if one.letter in "ZX"]) == len(running):
        # Such a process has no command any more, so nobody knows at which address to ask it.
        cause, advice = _ended(ended[0])
        pieces = [_state_of(one) for one in ended[:2]]
        yield _finding(cause, pieces, advice, SERVE_GUARDED)
    elif (silent or (asked and not answered)) and (held := _held_up(states)) is not None:
        cause, advice, state = held
        pieces = [_state_of(state)]
        pieces += [_evidence(name, at, one) for at, one in enumerate(asked) if one in silent or not answered][:2]
        yield _finding(cause, [*pieces, *_stands(path.parent / "stacks")], advice, again)
    elif asked and not answered:
        cause = "Nothing answered at that address when the bundle was made."
        yield _finding(cause, [_evidence(name, at, one) for at, one in enumerate(asked)][:2], _LOOK, again)
    elif silent and len(silent) == len(waiting):
        stands = list(_stands(path.parent / "stacks"))
        told = f": {stands[0].meaning}" if stands else ", by what it was asked"
        cause = f"The HTTP process answers and the scheduler does not{told}."
        pieces = [_evidence(name, at, one) for at, one in enumerate(asked) if one in silent]
        yield _finding(cause, [*pieces, *stands], _LOOK, again)
    elif any(one.get("path") == "/health" for one in silent):
        cause = "The scheduler answers, and the server does not pass its own check, which waits for a generated token."
        pieces = [_evidence(name, at, one) for at, one in enumerate(asked) if one in waiting]
        yield _finding(cause, pieces, _UNHEALTHY, again)


def _state_of(state: _State) -> Evidence:
    return Evidence(source=str(state.path), field="status.State", value=state.words, meaning="its state then")


def _held_up(states: Sequence[_State]) -> tuple[str, tuple[str, ...], _State] | None:
    """Return what the state of a process says of a silence, and what to do; of one that was stopped first."""
    for letters, tell in (("Tt", _stopped), ("ZX", _ended), ("D", _in_the_kernel)):
        for state in states:
            if state.letter in letters:
                return *tell(state), state
    return None


def _stopped(state: _State) -> tuple[str, tuple[str, ...]]:
    if state.letter == "t":
        return (
            f"{state.who} is held by a debugger and computes nothing meanwhile.",
            ("end or continue the debugger (TracerPid in /proc/PID/status names it): gdb, strace, py-spy",),
        )
    return (
        f"{state.who} is stopped by a signal and computes nothing until it goes on.",
        (
            f"kill -CONT {state.pid} on its machine lets it go on",
            "SIGSTOP, Ctrl-Z in its shell, a debugger or a container that was paused stop one so",
        ),
    )


def _ended(state: _State) -> tuple[str, tuple[str, ...]]:
    return (
        f"{state.who} has ended, and its parent has not noticed: the server is without it.",
        ("its log says what it died of; then start the server again: nothing brings a single process back",),
    )


def _in_the_kernel(state: _State) -> tuple[str, tuple[str, ...]]:
    return (
        f"{state.who} waits inside the kernel, which no signal ends: for a disk, a network's file system or a driver.",
        (
            "collect again: for a moment any process may wait so; dmesg -T names a disk or a driver that hangs",
            *_LOOK,
        ),
    )


_UNHEALTHY = (
    "HTTP 503 is SGLang's answer while it starts, while it ends, and after 20 s without a token: its log says which",
    "a detokenizer that hangs looks like this too: its stack is in the bundle if py-spy is installed",
)
_LOOK = ("collect twice, some seconds apart: a stack that does not move is where it hangs",)


def _finding(cause: str, evidence: Sequence[Evidence], advice: tuple[str, ...], command: str) -> Finding:
    return Finding(
        rule=RULE,
        cause=cause,
        confidence=Confidence.LIKELY,
        evidence=tuple(evidence),
        ruled_out_if=("the server was still loading its weights, or was busy for longer than `collect` waited",),
        advice=advice,
        next_commands=(command,),
    )


def _evidence(name: str, at: int, one: Mapping[str, Any]) -> Evidence:
    said = one.get("problem") or f"HTTP {one.get('status')}"
    return Evidence(source=name, field=f"http.{at}", value=cut(str(said)), meaning=cut(str(one.get("path"))))


def _stands(folder: Path) -> Iterator[Evidence]:
    """Yield where each scheduler stood, by the stacks in the bundle."""
    # Most evidence has no stacks, and what tells of them takes time to import.
    from gemma4_triage.logs.rules.hang import where

    for path in sorted(folder.glob("py-spy-*.txt"))[:64] if folder.is_dir() else ():
        try:
            found = py_spy.processes(Lines(path, py_spy.MAX_BYTES))
        except DumpError:
            continue
        for process in found:
            if process.is_scheduler and process.frames:
                yield Evidence(
                    source=str(path),
                    field=f"line {process.line}",
                    value="; ".join(process.frames[:3]),
                    meaning=f"process {process.pid} stood in {where(process.stack)}",
                )
