"""What belongs together: the dumps, guard manifests, leak ledgers, logs and other files of one server's run.

A rule is given an Incident and nothing else. Tensors and events of its dumps are read when a rule asks for them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose.guards import Guards
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.readers.reading import Reading

PAGE_TABLE, GEOMETRY, LEAK, SHAPES = "page-table-bounds", "geometry", "leak-audit", "batch-shapes"
GUARDS, LEDGERS = "guards", "audits"
"""The folders beside dumps that hold guard manifests and leak ledgers."""
LOST_PAGES, PROCESS_END, REQUEST_ROWS = "swa-lost-pages", "process-end", "request-rows"


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
        """Return dumps whose manifest says so, by rule, verdict, role, table_space, buffer_space; a tuple: any of."""
        return (dump for dump in self.dumps if all(_says(dump, name, value) for name, value in wanted.items()))

    def first(self, **wanted: Any) -> Dump | None:
        """Return the oldest of them."""
        return next(self.of(**wanted), None)

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


def _says(dump: Dump, name: str, value: Any) -> bool:
    manifest = dump.manifest
    found = getattr(manifest.provenance if name.endswith("_space") else manifest, name)
    return found in value if isinstance(value, tuple) else found == value


def _kind(dump: Dump) -> tuple[str | None, ...]:
    manifest = dump.manifest
    spaces = manifest.provenance.table_space, manifest.provenance.buffer_space
    # Start-up comparisons differ by what they compare.
    what = str(manifest.scalars.get("what")) if manifest.rule == GEOMETRY else None
    return manifest.rule, manifest.verdict, manifest.role, manifest.layer.type, manifest.pool_kind, *spaces, what
