"""What there is to diagnose: the dumps that were named, or all that a store holds, its guard manifests and ledgers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import from_json

from gemma4_dumps.errors import DumpError
from gemma4_dumps.manifest_file import MANIFEST_NAME, MAX_MANIFEST_BYTES
from gemma4_dumps.reader import Dump, read_dump
from gemma4_dumps.safe_file import json_files, read_regular
from gemma4_dumps.store import DumpStore
from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.diagnose.incident import Ledger

GUARDS, LEDGERS = "guards", "audits"


@dataclass(frozen=True)
class Unreadable:
    """Something that looked like evidence and could not be read."""

    path: Path
    problem: str


@dataclass(frozen=True)
class Material:
    """guards, ledgers: from files of their own. Dumps hold guard manifests too. hidden: older dumps left unread."""

    dumps: tuple[Dump, ...] = ()
    guards: tuple[Guards, ...] = ()
    ledgers: tuple[Ledger, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    hidden: int = 0


def read_named(store: DumpStore, names: Iterable[str], limit: int | None) -> Material:
    """The named dumps, each once. A directory without a manifest that holds dumps stands for the newest of them.

    Raises DumpError: a dump that was asked for cannot be found or read.
    """
    parts: dict[Path, Material] = {}
    for name in names:
        path = store.resolve(name)
        real = Path(os.path.realpath(path))
        if real not in parts:
            whole = not os.path.lexists(path / MANIFEST_NAME) and _is_store(path)
            parts[real] = read_store(DumpStore(path), limit) if whole else Material(dumps=(read_dump(path),))
    return _joined(parts.values())


def read_store(store: DumpStore, limit: int | None) -> Material:
    """The newest `limit` dumps below the store's root, or all, and what else is there.

    Raises DumpUnreadable if that cannot be listed.
    """
    dumps: list[Dump] = []
    unreadable: list[Unreadable] = []
    names = store.names()
    for entry in store.describe(names[:limit]):
        if entry.manifest is not None:
            dumps.append(Dump(entry.path, entry.manifest))
        elif entry.state != "writing":
            unreadable.append(Unreadable(entry.path, entry.problem or entry.state))
    guards, ledgers = [], []
    for path in json_files(store.root / GUARDS):
        fields = _fields(path, unreadable)
        guards += [] if fields is None else [Guards(path.name, "", fields)]
    for path in json_files(store.root / LEDGERS):
        fields = _fields(path, unreadable)
        ledgers += [] if fields is None else [Ledger(path.name, fields)]
    hidden = 0 if limit is None else max(0, len(names) - limit)
    return Material(tuple(dumps), tuple(guards), tuple(ledgers), tuple(unreadable), hidden)


def _is_store(path: Path) -> bool:
    # os.path says no of what it may not look at, and the reading of it says why; a Path would raise.
    return os.path.isdir(path / GUARDS) or bool(DumpStore(path).names())


def _fields(path: Path, unreadable: list[Unreadable]) -> dict | None:
    try:
        fields = from_json(read_regular(path, MAX_MANIFEST_BYTES), allow_inf_nan=False)
    except (DumpError, ValueError) as error:
        unreadable.append(Unreadable(path, str(error)))
        return None
    if not isinstance(fields, dict):
        unreadable.append(Unreadable(path, f"holds a {type(fields).__name__}, not an object"))
        return None
    return fields


def _joined(parts: Iterable[Material]) -> Material:
    """One material of several, each dump once, by its directory."""
    listed = list(parts)
    dumps = {os.path.realpath(dump.path): dump for part in listed for dump in part.dumps}
    return Material(
        tuple(dumps.values()),
        tuple(guards for part in listed for guards in part.guards),
        tuple(ledger for part in listed for ledger in part.ledgers),
        tuple(problem for part in listed for problem in part.unreadable),
        sum(part.hidden for part in listed),
    )
