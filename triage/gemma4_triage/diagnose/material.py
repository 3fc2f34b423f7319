"""What there is to diagnose: dumps, and the guard manifests and leak ledgers that lie beside them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import from_json

from gemma4_dumps.errors import DumpError
from gemma4_dumps.manifest_file import MAX_MANIFEST_BYTES
from gemma4_dumps.reader import Dump
from gemma4_dumps.safe_file import json_files, read_regular
from gemma4_dumps.store import DumpStore
from gemma4_dumps.unpacked import origin
from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.diagnose.incident import Ledger

GUARDS, LEDGERS = "guards", "audits"


@dataclass(frozen=True)
class Unreadable:
    """Something that looked like evidence and could not be read."""

    path: Path
    problem: str

    @property
    def place(self) -> str:
        """Return how to name it to a reader, as Dump.place."""
        return origin(self.path)


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


def read_store(store: DumpStore, limit: int | None) -> Material:
    """Return the newest `limit` dumps below the store's root, or all, and what else is there.

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
        fields = read_fields(path, unreadable)
        guards += [] if fields is None else [Guards(path.name, "", fields)]
    for path in json_files(store.root / LEDGERS):
        fields = read_fields(path, unreadable)
        ledgers += [] if fields is None else [Ledger(path.name, fields)]
    hidden = 0 if limit is None else max(0, len(names) - limit)
    return Material(tuple(dumps), tuple(guards), tuple(ledgers), tuple(unreadable), hidden)


def read_fields(path: Path, unreadable: list[Unreadable]) -> dict | None:
    """Return the object in a JSON file; None for a file that is none, which joins `unreadable`."""
    try:
        fields = from_json(read_regular(path, MAX_MANIFEST_BYTES), allow_inf_nan=False)
    except (DumpError, ValueError) as error:
        unreadable.append(Unreadable(path, str(error)))
        return None
    if not isinstance(fields, dict):
        unreadable.append(Unreadable(path, f"holds a {type(fields).__name__}, not an object"))
        return None
    return fields


def joined(parts: Iterable[Material]) -> Material:
    """Return one material of several, each dump once, by its directory."""
    listed = list(parts)
    dumps = {os.path.realpath(dump.path): dump for part in listed for dump in part.dumps}
    return Material(
        tuple(dumps.values()),
        tuple(guards for part in listed for guards in part.guards),
        tuple(ledger for part in listed for ledger in part.ledgers),
        tuple(problem for part in listed for problem in part.unreadable),
        sum(part.hidden for part in listed),
    )
