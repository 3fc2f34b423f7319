"""What belongs together: the dumps, guard manifests, leak ledgers, logs and other files of one server's run.

A rule is given an Incident and nothing else. Tensors and events of its dumps are read when a rule asks for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Any, Literal

from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.readers.reading import Reading

PAGE_TABLE, GEOMETRY, LEAK, SHAPES = "page-table-bounds", "geometry", "leak-audit", "batch-shapes"
GUARDS, LEDGERS = "guards", "audits"
"""The folders beside dumps that hold guard manifests and leak ledgers."""
LOST_PAGES, PROCESS_END, REQUEST_ROWS = "swa-lost-pages", "process-end", "request-rows"
REQUEST_STATE = (
    *("row_entry", "row_index", "length_differs", "write_misplaced", "table_entry"),
    *("counter_wrong", "lock_missing", "position_wrong"),
)
"""Verdicts of `request-rows` about what a batch believes of its requests."""


class Access(IntEnum):
    """What a dump's probe looked at, in the order in which a step of the scheduler comes to it."""

    START = 0
    ALLOCATOR = 1
    ROW = 2
    MAP = 3
    TABLE = 4
    LENGTHS = 5
    KERNEL = 6
    AUDIT = 7
    """All of it, once the step is over."""
    END = 8
    UNKNOWN = 9


_OF_RULE = {
    GEOMETRY: Access.START,
    "swa-stale-mapping": Access.MAP,
    "swa-mapping-alias": Access.MAP,
    PAGE_TABLE: Access.TABLE,
    LEAK: Access.AUDIT,
    PROCESS_END: Access.END,
    "accept-length": Access.KERNEL,
}
_OF_VERDICT = {
    **dict.fromkeys(
        ("row_entry", "row_index", "counter_wrong", "lock_missing", "insert_wrong", "window_kept"), Access.ROW
    ),
    **dict.fromkeys(("row_overflow", "unusable_spec_info"), Access.ROW),
    **dict.fromkeys(("table_entry", "write_misplaced"), Access.TABLE),
    **dict.fromkeys(("length_differs", "position_wrong", "table_too_narrow", "stale_write_rows"), Access.LENGTHS),
    "token_differs": Access.LENGTHS,
}
Place = tuple[int, Access, float]
"""When something was looked at: step and access, then when the dump was written, which tells only what is left."""


@dataclass(frozen=True)
class Ledger:
    """What the leak audit of one process wrote at its end, in file `source`."""

    source: str
    fields: Mapping[str, Any]


Relation = Literal["names", "agrees", "guess", "apart", "alone"]
"""How a log stands to an incident; the table is in assign_logs.py."""


@dataclass(frozen=True)
class LogLink:
    """Why a log, or another file, stands there.

    Args:
        log: the name of the log or file.
        relation: to the incident.
        incident: the first dump of that incident, else the guard manifest or ledger that it has; "" for none.
        reasons: a clause each.
    """

    log: str
    relation: Relation
    incident: str
    reasons: tuple[str, ...]

    @property
    def is_evidence(self) -> bool:
        """Return whether the log is that server's own, and so evidence of what went wrong."""
        return self.relation in ("names", "agrees")

    @property
    def text(self) -> str:
        """Return it as one sentence; empty if there is nothing to tell."""
        why = "; ".join(self.reasons)
        match self.relation:
            case "names" | "agrees":
                return f"of the server of {self.incident}: {why}"
            case "guess":
                return f"a guess: perhaps of the server of {self.incident}: {why}. It is evidence of nothing there."
            case "apart":
                return f"a run of its own, not that of {self.incident}: {why}"
            case _:
                return ""


@dataclass(frozen=True)
class Incident:
    """What is known of one server's run.

    Attributes:
        dumps: oldest first, of every rank, target and draft, repetitions too.
        guards: one per process, as of its latest dump, or from a file of its own.
        ledgers: what the leak audits of its processes left.
        logs: its serving logs.
        log_links: why each of the logs stands here.
        readings: what else it left: see readers/catalog.py.
        reading_links: likewise.
        beside_unread: whether something beside its dumps cannot be read.
    """

    dumps: tuple[Dump, ...] = ()
    guards: tuple[Guards, ...] = ()
    ledgers: tuple[Ledger, ...] = ()
    logs: tuple[LogFacts, ...] = ()
    log_links: tuple[LogLink, ...] = ()
    readings: tuple[Reading, ...] = ()
    reading_links: tuple[LogLink, ...] = ()
    beside_unread: bool = False

    def of(self, **wanted: Any) -> Iterator[Dump]:
        """Yield dumps whose manifest says so, what was looked at first first; a tuple: any of.

        By rule, verdict, role, table_space, buffer_space.
        """
        return (dump for dump in self.by_access if all(_says(dump, name, value) for name, value in wanted.items()))

    def first(self, **wanted: Any) -> Dump | None:
        """Return the first of them."""
        return next(self.of(**wanted), None)

    @cached_property
    def places(self) -> dict[str, Place]:
        """When each dump's probe looked at what it found, by the dump's id."""
        places: dict[str, Place] = {}
        latest, audited = 0, set[int]()
        for dump in sorted(self.dumps, key=lambda dump: (dump.manifest.created_utc, dump.manifest.dump_id)):
            manifest, access = dump.manifest, access_of(dump)
            written = manifest.created_utc.timestamp()
            latest = max(latest, manifest.step or 0)
            if access is Access.START:
                place = (0, access, written)
            elif manifest.step is None:
                # Behind all that was written before it.
                place = (latest, Access.UNKNOWN, written)
            else:
                # An audit ends a step: a call of its number behind it prepares the next one.
                step = manifest.step + int(access is Access.ALLOCATOR and manifest.step in audited)
                # What one audit found it found at once.
                place = (step, access, 0.0 if access is Access.AUDIT else written)
                audited |= {manifest.step} if access is Access.AUDIT else set()
            places[manifest.dump_id] = place
        return places

    @cached_property
    def by_access(self) -> tuple[Dump, ...]:
        """The dumps in the order of their places."""
        return tuple(sorted(self.dumps, key=lambda dump: self.places[dump.manifest.dump_id]))

    def dump(self, source: str) -> Dump | None:
        """Return the dump that a piece of evidence names."""
        return next((dump for dump in self.dumps if dump.manifest.dump_id == source), None)

    @property
    def name(self) -> str:
        """Return what to call it by: its first dump, else a guard manifest, ledger, log or file that it has."""
        names = [dump.manifest.dump_id for dump in self.dumps[:1]]
        names += [one.source for one in (*self.guards, *self.ledgers)]
        names += [one.name for one in (*self.logs, *self.readings)]
        return names[0] if names else ""

    @property
    def crashed(self) -> bool:
        """Return whether a log says that a process of the server died."""
        return any(facts.deaths for facts in self.logs)

    @property
    def times_s(self) -> list[float]:
        """Return when its dumps were written and its processes started, since the epoch; in no order."""
        times = [dump.manifest.created_utc.timestamp() for dump in self.dumps]
        return times + [guards.started_utc.timestamp() for guards in self.guards if guards.started_utc]

    def without(self, explained: frozenset[str]) -> Incident:
        """Return the same without these dumps (ids) and without repetitions of them."""
        kinds = self._kinds(explained)
        return replace(self, dumps=tuple(dump for dump in self.dumps if _kind(dump) not in kinds))

    def is_again(self, dump: Dump, explained: frozenset[str]) -> bool:
        """Return whether `dump` is one of these, or the same again: at another step, rank or site."""
        return _kind(dump) in self._kinds(explained)

    def _kinds(self, explained: frozenset[str]) -> set[tuple[str | None, ...]]:
        return {_kind(other) for other in self.dumps if other.manifest.dump_id in explained}


def access_of(dump: Dump) -> Access:
    """Return what a dump's probe looked at; UNKNOWN of a probe that this release does not know."""
    manifest = dump.manifest
    if manifest.rule == GEOMETRY and manifest.step is not None:
        # Whatever is looked at in that step goes by it.
        return Access.ALLOCATOR
    if manifest.rule.startswith("swa-") and manifest.rule not in _OF_RULE:
        return Access.ALLOCATOR
    if manifest.rule in (PAGE_TABLE, SHAPES, REQUEST_ROWS) and manifest.verdict in _OF_VERDICT:
        return _OF_VERDICT[manifest.verdict]
    return _OF_RULE.get(manifest.rule, Access.UNKNOWN)


def _says(dump: Dump, name: str, value: Any) -> bool:
    manifest = dump.manifest
    found = getattr(manifest.provenance if name.endswith("_space") else manifest, name)
    return found in value if isinstance(value, tuple) else found == value


def _kind(dump: Dump) -> tuple[str | None, ...]:
    manifest = dump.manifest
    spaces = manifest.provenance.table_space, manifest.provenance.buffer_space
    # What compares many things differs by what it compares.
    by = {GEOMETRY: "what", REQUEST_ROWS: "structure"}.get(manifest.rule)
    what = None if by is None else str(manifest.scalars.get(by))
    return manifest.rule, manifest.verdict, manifest.role, manifest.layer.type, manifest.pool_kind, *spaces, what
