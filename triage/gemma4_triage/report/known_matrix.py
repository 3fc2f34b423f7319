"""Every record of a known issue against its own log, the logs that it must leave alone, and all other records' logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemma4_triage.known_issues.record import KnownIssue
from gemma4_triage.logs.read import read_log
from gemma4_triage.logs.rules.known_issue import matches_in


@dataclass(frozen=True)
class MatrixRow:
    """What the signature of one record fits.

    Attributes:
        issue: The record.
        matches_own: Whether it fits its own log.
        fits_wrongly: Of its own other logs, by number from 1, those that it fits.
        fits_others: Ids of records whose log it fits, without those that it says it cannot tell apart.
    """

    issue: KnownIssue
    matches_own: bool
    fits_wrongly: tuple[int, ...]
    fits_others: tuple[str, ...]

    @property
    def good(self) -> bool:
        """Say whether the record fits what it should, and nothing else."""
        return self.matches_own and not self.fits_wrongly and not self.fits_others


def matrix(issues: Sequence[KnownIssue]) -> list[MatrixRow]:
    """Return a row for every record. Logs go through the reader of serving logs, as a user's do."""
    fits = {issue.id: _ids(issue.log, issues) for issue in issues}
    return [
        MatrixRow(
            issue,
            issue.id in fits[issue.id],
            tuple(n for n, log in enumerate(issue.other_logs, 1) if _ids(log, [issue])),
            tuple(
                other.id
                for other in issues
                if other.id != issue.id and issue.id in fits[other.id] and other.id not in issue.also_matches
            ),
        )
        for issue in issues
    ]


def _ids(log: str, issues: Sequence[KnownIssue]) -> frozenset[str]:
    facts = read_log("record", [log.encode()], points=2)
    return frozenset(match.issue.id for match in matches_in(facts, issues))
