"""Known issues as JSON documents: the list, one record, what logs match, and the check of the records themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gemma4_triage.known_issues.record import KnownIssue
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.rule import exception_text
from gemma4_triage.logs.rules.known_issue import Match
from gemma4_triage.report.known_matrix import MatrixRow

_IN_A_LIST = {"id", "threads", "title", "topic", "since", "fixed", "gone_by", "patch"}


def list_document(issues: Sequence[KnownIssue]) -> dict[str, Any]:
    """Return what tells one record from another."""
    return {"issues": [issue.model_dump(mode="json", include=_IN_A_LIST) for issue in issues]}


def issue_document(issue: KnownIssue) -> dict[str, Any]:
    """Return all of one record, and where its threads are."""
    return {"issue": issue.model_dump(mode="json") | {"urls": list(issue.urls)}}


def matches_document(found: Sequence[tuple[LogFacts, str | None, list[Match]]]) -> dict[str, Any]:
    """Return what each log matches.

    Args:
        found: Of each log what was read, the release that it is judged by, and the records that fit.
    """
    return {
        "logs": [
            {
                "file": facts.name,
                "release": release,
                "matches": [_match(match, release) for match in matches],
            }
            for facts, release, matches in found
        ]
    }


def check_document(rows: Sequence[MatrixRow]) -> dict[str, Any]:
    """Return the check of every record; `good` says that each fits its own log, and no other."""
    return {
        "good": all(row.good for row in rows),
        "records": [
            {
                "id": row.issue.id,
                "good": row.good,
                "matches_own_log": row.matches_own,
                "fits_its_other_logs": list(row.fits_wrongly),
                "fits_logs_of": list(row.fits_others),
            }
            for row in rows
        ],
    }


def _match(match: Match, release: str | None) -> dict[str, Any]:
    return {
        "id": match.issue.id,
        "concerned": match.concerned,
        "state": match.issue.state(release),
        "line": match.death.place.line,
        "exception": exception_text(match.death),
        "confidence": match.issue.confidence,
    }
