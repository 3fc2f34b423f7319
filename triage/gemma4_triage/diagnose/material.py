"""What there is to diagnose: dumps, and the guard manifests and leak ledgers that lie beside them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import from_json

from gemma4_dumps.errors import DumpError
from gemma4_dumps.manifest_file import MANIFEST_NAME, MAX_MANIFEST_BYTES
from gemma4_dumps.reader import Dump
from gemma4_dumps.safe_file import json_files, read_regular
from gemma4_dumps.store import DumpStore
from gemma4_dumps.unpacked import origin
from gemma4_dumps.wording import number_of
from gemma4_triage.diagnose.grouping import group
from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.diagnose.incident import GUARDS, LEDGERS, Incident, Ledger

MAX_PIECES = 1000
"""Pieces are held against each other, which takes the square of their number."""
MAX_PARSED_BYTES = 32 * 1024**2
"""A thousand real manifests have a third of it. Parsed, hostile JSON takes fifty times its size in memory."""
MAX_SECONDS = 120.0


class Budget:
    """What all that was named may cost together. What is beyond is counted and not read.

    Attributes:
        end_s: when the time is up, of time.monotonic().
        skipped: how many files and folders were not read.
    """

    def __init__(self, limited: bool = True) -> None:
        """limited: False for as many pieces as there are, however long it takes; memory has a limit all the same."""
        self.end_s = time.monotonic() + MAX_SECONDS if limited else float("inf")
        self.skipped = 0
        self._pieces = MAX_PIECES if limited else None
        self._bytes = MAX_PARSED_BYTES
        self._reached = ""
        self._first = Path()

    def admits(self, path: Path, is_parsed: bool = True) -> bool:
        """Return whether one more piece may be read, and count it; `is_parsed` says that it is a file of JSON."""
        try:
            size = min(os.path.getsize(path), MAX_MANIFEST_BYTES) if is_parsed else 0
        except OSError:
            size = 0
        if self._pieces is not None and self._pieces <= 0:
            return self._skip(f"after {MAX_PIECES} pieces of evidence", path)
        if size > self._bytes:
            return self._skip(f"after {MAX_PARSED_BYTES // 1024**2} MiB of manifests", path)
        if self.is_over(path):
            return False
        self._pieces = None if self._pieces is None else self._pieces - 1
        self._bytes -= size
        return True

    def is_over(self, path: Path) -> bool:
        """Return whether the time is up, and count `path`, which is not read then."""
        return time.monotonic() > self.end_s and not self._skip(f"after {MAX_SECONDS:g} s", path)

    def leave(self, count: int, why: str, path: Path) -> None:
        """Count what is not read for another limit; `path` is the first of it."""
        self.skipped += count
        if not self._reached:
            self._reached, self._first = why, path

    def _skip(self, why: str, path: Path) -> bool:
        self.leave(1, why, path)
        return False

    @property
    def remark(self) -> str:
        """Return what was not read and why, in a sentence; "" if everything was."""
        if not self.skipped:
            return ""
        what = number_of(self.skipped, "file or folder", "files and folders")
        more = ", or --limit 0 for all" if self._pieces is not None else ""
        return f"not read: {what}: reading ends {self._reached}, before {full(self._first)}; name a part of it{more}"


@dataclass(frozen=True)
class Unreadable:
    """Something that looked like evidence and could not be read."""

    path: Path
    problem: str

    def __post_init__(self) -> None:
        # What could not be read is named by its reader too.
        said = self.problem
        for name in (self.path, origin(self.path), self.place, f"{self.path.name} cannot be read"):
            said = said.removeprefix(f"{name}: ")
        object.__setattr__(self, "problem", said)

    @property
    def place(self) -> str:
        """Return how to name it to a reader wherever they are."""
        return full(self.path)


def full(path: Path) -> str:
    """Return the whole path of a file, as a reader knows it: of an unpacked one by its zip."""
    return os.path.abspath(origin(path))


@dataclass(frozen=True)
class Material:
    """What there is of one or several servers' runs.

    Attributes:
        dumps: with their manifests.
        guards: from files of their own; dumps hold guard manifests too.
        ledgers: from files of their own.
        unreadable: what looked like evidence and could not be read.
        hidden: how many older dumps were left unread.
    """

    dumps: tuple[Dump, ...] = ()
    guards: tuple[Guards, ...] = ()
    ledgers: tuple[Ledger, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    hidden: int = 0

    @property
    def incidents(self) -> list[Incident]:
        """Return what belongs together, the newest first, without what logs and other files say of it."""
        return group(self.dumps, self.guards, self.ledgers, [one.path for one in self.unreadable])


def read_store(store: DumpStore, limit: int | None, budget: Budget | None = None) -> Material:
    """Return the newest `limit` dumps below the store's root, or all, and what else is there, within a budget.

    Raises DumpUnreadable if that cannot be listed.
    """
    dumps: list[Dump] = []
    unreadable: list[Unreadable] = []
    names = store.names()
    costs = Budget(limit is not None) if budget is None else budget
    admitted = [name for name in names[:limit] if costs.admits(store.root / name / MANIFEST_NAME)]
    for entry in store.describe(admitted):
        if entry.manifest is not None:
            dumps.append(Dump(entry.path, entry.manifest))
        elif entry.state != "writing":
            unreadable.append(Unreadable(entry.path, entry.problem or entry.state))
    guards, ledgers = [], []
    for path in filter(costs.admits, _files_of(store.root / GUARDS, unreadable)):
        fields = read_fields(path, unreadable)
        guards += [] if fields is None else [Guards(path.name, "", fields)]
    for path in filter(costs.admits, _files_of(store.root / LEDGERS, unreadable)):
        fields = read_fields(path, unreadable)
        ledgers += [] if fields is None else [Ledger(path.name, fields)]
    hidden = 0 if limit is None else max(0, len(names) - limit)
    return Material(tuple(dumps), tuple(guards), tuple(ledgers), tuple(unreadable), hidden)


def _files_of(folder: Path, unreadable: list[Unreadable]) -> list[Path]:
    """Return the JSON files of a folder beside dumps. One that is there and cannot be listed joins `unreadable`."""
    if os.path.islink(folder):
        unreadable.append(Unreadable(folder, "it is a link, which is not followed"))
        return []
    try:
        os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        unreadable.append(Unreadable(folder, error.strerror or str(error)))
    return json_files(folder)


def read_fields(path: Path, unreadable: list[Unreadable]) -> dict | None:
    """Return the object in a JSON file; None for a file that is none, which joins `unreadable`."""
    try:
        fields = from_json(read_regular(path, MAX_MANIFEST_BYTES), allow_inf_nan=False)
    except (DumpError, ValueError) as error:
        unreadable.append(Unreadable(path, str(error)))
        return None
    if not isinstance(fields, dict):
        unreadable.append(Unreadable(path, "it holds no JSON object"))
        return None
    return fields


def _without_copies(dumps: Iterable[Dump]) -> tuple[Dump, ...]:
    """Return the dumps, of copies with one and the same manifest the first whose files are what that says."""
    by_id: dict[str, list[Dump]] = {}
    for dump in dumps:
        alike = by_id.setdefault(dump.manifest.dump_id, [])
        at = next((at for at, other in enumerate(alike) if other.manifest == dump.manifest), None)
        if at is None:
            alike.append(dump)
        elif alike[at].damage and not dump.damage:
            alike[at] = dump
    return tuple(dump for alike in by_id.values() for dump in alike)


def joined(parts: Iterable[Material]) -> Material:
    """Return one material of several, each dump once: neither a directory nor a copy of it counts twice."""
    listed = list(parts)
    dumps = {os.path.realpath(dump.path): dump for part in listed for dump in part.dumps}
    return Material(
        _without_copies(dumps.values()),
        tuple(guards for part in listed for guards in part.guards),
        tuple(ledger for part in listed for ledger in part.ledgers),
        tuple(problem for part in listed for problem in part.unreadable),
        sum(part.hidden for part in listed),
    )
