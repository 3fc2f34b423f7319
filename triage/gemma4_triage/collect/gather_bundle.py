"""Gathers what a server shows and packs it: HTTP replies, processes, logs, stacks, GPU state, dumps and manifests.

Everything is read. What cannot be had is an item with its reason; only a target of which nothing is left at all is an
error. Layout of the zip:

| name                       | holds                                                                             |
|----------------------------|-----------------------------------------------------------------------------------|
| `collect.json`             | when, of what, each item with its outcome; what `diagnose` begins with            |
| `http/`                    | `/health`, `/server_info`, `/model_info`, `/v1/models`, `/metrics`                |
| `process/PID.json`         | command, variables about serving, status of each process                          |
| `logs/`                    | the end of the files that stdout and stderr go to, and logs that were named       |
| `stacks/`                  | py-spy of each process                                                            |
| `gpu/nvidia-smi.txt`       | GPU state                                                                         |
| `dumps/`                   | the newest dumps of these processes, with `guards/` and `audits/`                 |
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gemma4_dumps.errors import DumpError
from gemma4_dumps.redaction import redact_launch_args
from gemma4_dumps.safe_file import FILE_MODE, open_regular, read_chunks
from gemma4_dumps.store import DumpStore
from gemma4_triage.collect import ask_server, processes
from gemma4_triage.collect.secrets import (
    clean_body,
    clean_command,
    clean_json,
    clean_line,
    clean_lines,
    clean_variables,
    without_value,
)
from gemma4_triage.diagnose.material import Material, read_store
from gemma4_triage.errors import UsageMistake
from gemma4_triage.logs.source import Source, is_read_as_it_lies
from gemma4_triage.time_limit import until

NAME, KIND, SCHEMA_VERSION = "collect.json", "collection", "1.0"
MAX_LOG_BYTES = 16 * 1024**2
MAX_DUMPS = 32
MAX_DUMPS_BYTES = 512 * 1024**2
_PEEKED_BYTES = 4096
_TOOL_S = 15.0
_LOOKS, _PAUSE_S = 10, 0.03
"""How often py-spy looks at a process that runs on: its stack may change while it is read."""


def output_of(command: list[str], tries: int) -> subprocess.CompletedProcess[bytes]:
    """Run a command, again while it fails, and return what it ended with.

    Raises:
        subprocess.TimeoutExpired: it did not end within 15 s.
        OSError: it cannot be started.
    """
    begin = time.monotonic()
    while True:
        done = subprocess.run(command, capture_output=True, timeout=_TOOL_S, check=False, stdin=subprocess.DEVNULL)
        tries -= 1
        if not done.returncode or tries <= 0 or time.monotonic() - begin > _TOOL_S:
            return done
        time.sleep(_PAUSE_S)


@dataclass
class Item:
    """One thing that was asked for: where it lies in the zip, or why it is not there."""

    name: str
    ok: bool
    problem: str = ""
    took_s: float = 0.0


@dataclass
class Target:
    """What to collect of.

    Attributes:
        url: of the server, without a path; "" for none.
        pid: of a process of it; None if none is known.
        store: where its dumps are; None to take what its environment says.
        logs: files that were named.
        key: the server's API key; "" for none.
        timeout_s: how long to wait for an answer.
    """

    url: str
    pid: int | None
    store: Path | None
    logs: Sequence[Path] = ()
    key: str = ""
    timeout_s: float = 5.0


@dataclass
class Bundle:
    """What was gathered.

    Attributes:
        document: collect.json.
        items: in the order in which they were asked for.
        pieces: how many of them are evidence of the server.
        not_sglang: why what answered is no server of SGLang; "" if it is one, or may be one.
    """

    document: dict[str, Any] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    pieces: int = 0
    not_sglang: str = ""


def collect(target: Target, out: Path, default_store: Path) -> Bundle:
    """Gather everything and write the zip. Raises OSError if that cannot be written; nothing is left of it then."""
    temporary = out.with_name(f".{out.name[:100]}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, FILE_MODE)
        with os.fdopen(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            bundle = _Collector(target, archive, default_store).run()
        if bundle.pieces:
            os.replace(temporary, out)
    finally:
        temporary.unlink(missing_ok=True)
    return bundle


class _Collector:
    def __init__(self, target: Target, archive: zipfile.ZipFile, default_store: Path) -> None:
        self._target, self._archive, self._default = target, archive, default_store
        self._bundle = Bundle()

    def run(self) -> Bundle:
        begin = datetime.now(UTC)
        found = processes.server_of(self._target.pid) if self._target.pid else []
        answers = self._http(found)
        closed = bool(answers) and all(one.closed for one in answers) and not processes.serves(found)
        if self._bundle.not_sglang or closed:
            # Whose address was named by mistake has logs and variables that are nobody's business.
            found, self._target = [], replace(self._target, pid=None)
        variables = self._processes(found)
        self._logs(found)
        self._stacks(found)
        self._tool("gpu/nvidia-smi.txt", "nvidia-smi", [])
        pids = {one.pid for one in found} | ({self._target.pid} if self._target.pid else set())
        store = self._target.store or _folder(variables, found) or self._default
        self._dumps(DumpStore(store), pids)
        document = {
            "schema_version": SCHEMA_VERSION,
            "kind": KIND,
            "created_utc": begin.isoformat(timespec="seconds"),
            "gemma4_triage": version("gemma4-triage"),
            "host": socket.gethostname(),
            "url": clean_line(self._target.url) or None,
            "pid": self._target.pid,
            "was_running": bool(found) if self._target.pid else None,
            "processes": [
                {
                    "pid": one.pid,
                    "parent": one.parent,
                    "title": (clean_command(one.command) or one.title)[:200],
                    "started_s": one.started_s,
                }
                for one in found
            ],
            "command": clean_json(list(found[0].command)) if found else [],
            "http": [
                {"path": one.path, "status": one.status, "took_s": round(one.took_s, 3), "problem": one.problem or None}
                for one in answers
            ],
            "not_sglang": self._bundle.not_sglang or None,
            "items": [vars(item) for item in self._bundle.items],
        }
        self._bundle.document = document
        self._archive.writestr(_info(NAME), without_value(json.dumps(document, indent=1).encode(), self._target.key))
        return self._bundle

    def _add(self, name: str, data: bytes, took_s: float = 0.0, evidence: bool = True) -> None:
        self._archive.writestr(_info(name), without_value(data, self._target.key))
        self._bundle.items.append(Item(name, True, "", round(took_s, 3)))
        self._bundle.pieces += evidence

    def _lacks(self, name: str, problem: str, took_s: float = 0.0) -> None:
        self._bundle.items.append(Item(name, False, clean_line(problem)[:400], round(took_s, 3)))

    def _http(self, found: Sequence[processes.Process]) -> list[ask_server.Answer]:
        if not self._target.url and not found:
            self._lacks("http/", "there is no such process on this machine")
            return []
        if not self._target.url and processes.has_ended(found[0]):
            whose = f"process {found[0].pid} has ended, and its parent, process {found[0].parent}, has not noticed"
            self._lacks("http/", f"{whose}: its command can no longer be read, nor the port in it")
            return []
        if not self._target.url:
            self._lacks("http/", "no address: the command of the process names no port of SGLang")
            return []
        answers = ask_server.ask(self._target.url, self._target.key, self._target.timeout_s)
        if not processes.serves(found):
            self._bundle.not_sglang = clean_line(ask_server.why_not_sglang(answers))[:400]
        # Such as a hanging server of another user or host: that it takes requests is all that there is to say of it.
        self._bundle.pieces += not self._bundle.not_sglang and any(one.accepted for one in answers)
        for one in answers:
            if one.status is None:
                self._lacks(one.name, one.problem, one.took_s)
            else:
                body = clean_body(one.body) if one.body else f"HTTP {one.status}\n".encode()
                self._add(one.name, body, one.took_s, evidence=not self._bundle.not_sglang)
        return answers

    def _processes(self, found: Sequence[processes.Process]) -> dict[str, str]:
        """Write what each process is, and return the launcher's variables."""
        first: dict[str, str] = {}
        if not found and self._target.pid:
            self._lacks(f"process/{self._target.pid}.json", "there is no such process")
        elif not found:
            self._lacks("process/", "no process of yours on this machine listens on that port")
        for one in found:
            fields: dict[str, Any] = {
                "pid": one.pid,
                "parent": one.parent,
                "started_s": one.started_s,
                "command": redact_launch_args(one.command),
                "status": processes.status_of(one.pid),
            }
            try:
                variables = processes.environment_of(one.pid)
                first = first or variables
                fields["environment"] = clean_variables(variables)
            except OSError as error:
                ended = processes.has_ended(one)
                why = "the process has ended" if ended else f"{error.strerror}: of another user, or gone"
                fields["problem"] = f"its environment cannot be read: {why}"
                self._lacks(f"process/{one.pid}.json: environment", why)
            # One that has ended and is not called SGLang may have been anything.
            told = processes.serves([one]) or not processes.has_ended(one)
            self._add(f"process/{one.pid}.json", json.dumps(clean_json(fields), indent=1).encode(), evidence=told)
        return first

    def _logs(self, found: Sequence[processes.Process]) -> None:
        wanted: dict[str, Path] = {}
        for one in found:
            files, others = processes.logs_of(one.pid)
            for path in files:
                wanted.setdefault(os.path.realpath(path), path)
            if others and not files and one is found[0]:
                place = ", ".join(others)[:200]
                hidden = {os.strerror(errno.EACCES), os.strerror(errno.ENOENT)}
                seen = f"stdout: {place}" if hidden & set(others) else f"stdout goes to {place}"
                if processes.has_ended(one):
                    seen = "the process has ended, and where its output went can no longer be seen"
                self._lacks("logs/", f"{seen}; name the log with --log")
        for path in self._target.logs:
            # Once, if it is what stdout goes to.
            wanted.setdefault(os.path.realpath(path), path)
        for at, path in enumerate(wanted.values()):
            name = f"logs/{at}_{path.name[-80:]}"
            try:
                self._add(name, b"".join(clean_lines(_end_of(path))))
            except UsageMistake as error:
                self._lacks(name, error.message)
            except OSError as error:
                self._lacks(name, f"{path} cannot be read: {error.strerror}")

    def _stacks(self, found: Sequence[processes.Process]) -> None:
        for one in found:
            if one.command and "resource_tracker" not in " ".join(one.command):
                # Without --nonblocking py-spy would stop the process while it looks.
                words = ["dump", "--nonblocking", "--pid", str(one.pid)]
                self._tool(f"stacks/py-spy-{one.pid}.txt", "py-spy", words, _LOOKS)

    def _tool(self, name: str, program: str, words: list[str], tries: int = 1) -> None:
        beside = Path(sys.executable).with_name(program)
        path = shutil.which(program) or (str(beside) if os.access(beside, os.X_OK) else None)
        if path is None:
            self._lacks(name, f"{program} is not installed")
            return
        begin = time.monotonic()
        try:
            done = output_of([path, *words], tries)
        except subprocess.TimeoutExpired:
            self._lacks(name, f"{program} did not end within {_TOOL_S:g} s", _TOOL_S)
            return
        except OSError as error:
            self._lacks(name, f"{program} cannot be started: {error.strerror}")
            return
        took_s = time.monotonic() - begin
        if done.returncode:
            said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
            self._lacks(name, f"{program} ended with {done.returncode}: {said[0] if said else ''}", took_s)
        else:
            self._add(name, b"".join(clean_lines(done.stdout.splitlines(keepends=True))), took_s, evidence=False)

    def _dumps(self, store: DumpStore, pids: set[int]) -> None:
        try:
            material = read_store(store, 4 * MAX_DUMPS)
        except DumpError as error:
            self._lacks("dumps/", str(error))
            return
        launch = _launch_of(material, pids)
        if not launch and not pids and self._target.store is not None:
            # Without a process to tell it by, what the folder that was named has last.
            launch = material.incidents[:1]
        room = MAX_DUMPS_BYTES
        for incident in launch:
            for dump in incident.dumps[-MAX_DUMPS:]:
                name = f"dumps/{dump.path.name}"
                try:
                    files = [path for path in _files(dump.path) if path.is_file()]
                    size = sum(path.stat().st_size for path in files)
                except OSError as error:
                    self._lacks(name, f"it cannot be read: {error.strerror}")
                    continue
                if not files:
                    self._lacks(name, "it was removed while this bundle was made")
                    continue
                if size > room:
                    self._lacks(name, f"{size} bytes are more than the {room} that are left for dumps")
                    continue
                room -= size
                self._copy(name, files)
            # A process that wrote a dump is known by the manifest in there; it has a file of its own all the same.
            ends = tuple(f"_p{guards.pid}.json" for guards in incident.guards)
            self._copy("dumps/guards", [path for path in _files(store.root / "guards") if path.name.endswith(ends)])
            ledgers = {ledger.source for ledger in incident.ledgers}
            self._copy("dumps/audits", [path for path in _files(store.root / "audits") if path.name in ledgers])
        if not launch:
            whose = f"processes {', '.join(map(str, sorted(pids)[:8]))}" if pids else "that server"
            self._lacks("dumps/", f"{store.root} holds no dump and no guard manifest of {whose}")

    def _copy(self, folder: str, paths: Iterable[Path]) -> None:
        listed = list(paths)
        for path in listed:
            try:
                with open_regular(path) as file, self._archive.open(_info(f"{folder}/{path.name}"), "w") as entry:
                    for chunk in read_chunks(file, path):
                        entry.write(chunk)
            except DumpError as error:
                self._lacks(f"{folder}/{path.name}", str(error))
                return
        if listed:
            self._bundle.items.append(Item(folder, True))
            self._bundle.pieces += 1


def _launch_of(material: Material, pids: set[int]) -> list[Any]:
    """Return the incidents that one of these processes belongs to."""
    found = material.incidents
    here = socket.gethostname()
    return [
        one
        for one in found
        if pids & {guards.pid for guards in one.guards if guards.fields.get("hostname") == here}
        or any(dump.manifest.host.pid in pids and dump.manifest.host.hostname == here for dump in one.dumps)
    ][:1]


def _end_of(path: Path) -> list[bytes]:
    """Return the last lines of a log, unpacked and in UTF-8: anything else cannot be looked through for secrets.

    Raises:
        OSError: It cannot be read.
        UsageMistake: It is no text, or packed in a way that is not read.
    """
    # Raises for an archive, and for what is no text.
    next(Source(str(path)).chunks(), b"")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if is_read_as_it_lies(file.peek(_PEEKED_BYTES)[:_PEEKED_BYTES]):
            file.seek(max(0, size - MAX_LOG_BYTES))
            if size > MAX_LOG_BYTES:
                file.readline()
            return file.readlines(MAX_LOG_BYTES)
    kept: deque[bytes] = deque()
    size = 0
    with until(time.monotonic() + _TOOL_S):
        for chunk in Source(str(path)).chunks():
            kept.append(chunk)
            size += len(chunk)
            while size - len(kept[0]) >= MAX_LOG_BYTES:
                size -= len(kept.popleft())
    return b"".join(kept)[-MAX_LOG_BYTES:].splitlines(keepends=True)


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        # Whoever prunes dumps meanwhile may have removed it.
        return []


def _folder(variables: dict[str, str], found: Sequence[processes.Process]) -> Path | None:
    """Return the folder of dumps that the launcher's variables name; one that is relative is below its own folder."""
    named = variables.get("SGLANG_TRTLLM_MHA_DEBUG_DIR")
    return processes.folder_of(found[0].pid) / named if named and found else None


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, time.gmtime()[:6])
    info.compress_type = zipfile.ZIP_DEFLATED
    info.create_system = 3
    info.external_attr = (0o100000 | FILE_MODE) << 16
    return info
