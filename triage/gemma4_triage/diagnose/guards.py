"""The guard manifest of one process: what was asked for, attached and verified, and what it found at start-up.

It may come from another version, so that every field is looked at before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True)
class StartUpFinding:
    """One line of the `geometry` probe. field: where its summary stands, below the manifest's root."""

    severity: str
    verdict: str
    summary: str
    field: str


@dataclass(frozen=True)
class Guards:
    """source: a dump id or a file name. prefix: "guards." inside a dump, "" in a file of its own."""

    source: str
    prefix: str
    fields: Mapping[str, Any]

    def setting(self, name: str) -> Any:
        settings = self.fields.get("settings")
        return settings.get(name) if isinstance(settings, Mapping) else None

    @property
    def faults(self) -> tuple[str, ...]:
        """The faults that were injected on request."""
        found = self.setting("faults")
        return tuple(map(str, found)) if isinstance(found, list) else ()

    def rows(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield one per patch: the field that it stands in, and what it says."""
        rows = self.fields.get("patches")
        for number, row in enumerate(rows if isinstance(rows, list) else ()):
            if isinstance(row, Mapping) and "id" in row:
                yield f"patches.{number}", row

    def attached(self, patch: str) -> str | None:
        """Return the field that says that `patch` is attached; None if it does not."""
        return next(
            (f"{at}.attached" for at, row in self.rows() if row["id"] == patch and row.get("attached") is True), None
        )

    def start_up_findings(self) -> Iterator[StartUpFinding]:
        for at, row in self.rows():
            findings = row.get("findings")
            for number, found in enumerate(findings if isinstance(findings, list) else ()):
                if isinstance(found, Mapping) and isinstance(found.get("summary"), str):
                    severity, verdict = str(found.get("severity")), str(found.get("verdict"))
                    yield StartUpFinding(severity, verdict, found["summary"], f"{at}.findings.{number}.summary")

    @property
    def pid(self) -> int | None:
        pid = self.fields.get("pid")
        return pid if isinstance(pid, int) else None

    @property
    def marks_its_end(self) -> bool:
        """Return whether a probe was there to write how the process ends."""
        return "ended" in self.fields

    @property
    def ended(self) -> tuple[str, str] | None:
        """Return how the process ended and why, in its own words; None if it left no mark, or could not leave one."""
        ended = self.fields.get("ended")
        if not isinstance(ended, Mapping) or not isinstance(ended.get("how"), str):
            return None
        return ended["how"], str(ended.get("why", ""))

    @property
    def started_utc(self) -> datetime | None:
        """When the process wrote it first: soon after it started."""
        try:
            started = datetime.fromisoformat(self.fields["created_utc"])
        except (KeyError, TypeError, ValueError):
            return None
        return started if started.tzinfo else started.replace(tzinfo=UTC)
