"""The bundle of `gemma4-triage collect`: whose it is, and whether the server answered.

Dumps, manifests, logs and stacks in it are read as what they are; this reader says that they are of one server, since
`collect` took them from one.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from gemma4_dumps.errors import DumpError
from gemma4_dumps.safe_file import read_regular
from gemma4_triage.finding import Confidence, Evidence, Finding
from gemma4_triage.logs.rules.hang import where
from gemma4_triage.readers import py_spy
from gemma4_triage.readers.reading import SERVE_GUARDED, Identity, Moment, NotThis, Reading, cut
from gemma4_triage.readers.text_file import Lines

KIND, NAME = "collection", "collect.json"
RULE, TITLE = "server-not-answering", "a server was gone, or did not answer, when a bundle was made of it"
FOLDERS = frozenset({"http", "process", "gpu"})
"""Folders of a bundle that hold nothing but what this reader looks at."""
MAX_BYTES = 16 * 1024**2
_WAITS_FOR_SCHEDULER = ("/server_info", "/health")


def takes(head: bytes) -> bool:
    """Return whether a file begins as the document of a bundle does."""
    return head[:1] == b"{" and b'"kind": "collection"' in head[:400]


def read(paths: Sequence[Path]) -> Iterator[Reading]:
    """Yield a reading for each bundle's document. Raises NotThis, DumpUnreadable."""
    for path in paths:
        yield _read(path)


def _read(path: Path) -> Reading:
    fields = _object(path)
    if fields is None or not isinstance(fields.get("processes", []), list):
        raise NotThis
    folder = path.parent
    info = _object(folder / "http" / "server_info.json") or {}
    model = _object(folder / "http" / "model_info.json") or {}
    created = _seconds(fields.get("created_utc"))
    running = [one for one in fields.get("processes", []) if isinstance(one, dict)]
    pids = [pid for one in running if isinstance(pid := one.get("pid"), int)]
    pids += [pid for pid in (fields.get("pid"),) if isinstance(pid, int) and pid not in pids]
    begins = [time for one in running if isinstance(time := one.get("started_s"), int | float)]
    moments = [Moment(float(min(begins)), "the server's first process started", "processes")] if begins else []
    moments.append(Moment(created, "this bundle was made", "created_utc"))
    settings = {str(name): str(value) for name, value in info.items() if isinstance(value, str | int | float | bool)}
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
            settings={name: value for name, value in settings.items() if len(value) <= 200},
            release=str(info.get("version") or ""),
            folder=str(folder),
        ),
        moments=tuple(moments),
        facts=tuple(_facts(fields)),
        findings=tuple(_findings(path, fields, running)),
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
    except ValueError:
        return None


def _requests(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = fields.get("http")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _facts(fields: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for one in _requests(fields):
        said = one.get("problem") or f"HTTP {one.get('status')} in {one.get('took_s')} s"
        yield cut(str(one.get("path"))), cut(str(said))
    items = fields.get("items")
    lacking = [one for one in items if isinstance(one, dict) and not one.get("ok")] if isinstance(items, list) else []
    for one in [one for one in lacking if not str(one.get("name")).startswith("http/")][:8]:
        yield f"not in it: {cut(str(one.get('name')))}", cut(str(one.get("problem")))


def _findings(path: Path, fields: Mapping[str, Any], running: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    asked = _requests(fields)
    waiting = [one for one in asked if one.get("path") in _WAITS_FOR_SCHEDULER]
    silent = [one for one in waiting if one.get("status") is None or one.get("status") == 503]
    answered = [one for one in asked if one.get("status") is not None]
    name = str(path)
    again = f"gemma4-triage collect {shlex.quote(str(fields.get('url') or fields.get('pid')))}"
    if not running and fields.get("was_running") is False:
        cause = "The server was gone when the bundle was made: there was no such process."
        piece = Evidence(source=name, field="was_running", value=False, meaning=f"process {fields.get('pid')}")
        yield _finding(cause, [piece], ("its log says what it died of: add it with --log",), SERVE_GUARDED)
    elif asked and not answered:
        cause = "Nothing answered at that address when the bundle was made."
        yield _finding(cause, [_evidence(name, at, one) for at, one in enumerate(asked)][:2], _LOOK, again)
    elif silent and len(silent) == len(waiting):
        stands = list(_stands(path.parent / "stacks"))
        told = f": {stands[0].meaning}" if stands else ", by what it was asked"
        cause = f"The HTTP process answers and the scheduler does not{told}."
        pieces = [_evidence(name, at, one) for at, one in enumerate(asked) if one in silent]
        yield _finding(cause, [*pieces, *stands], _LOOK, again)


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
