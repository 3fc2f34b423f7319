"""Targets against rows: met, missed, or not measured."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gemma4_repro.bench.arms import BenchArm
from gemma4_repro.bench.rows import HOST_DEVICE

MET, MISSED, NOT_MEASURED, NOT_JUDGED = "met", "missed", "not measured", "not judged"
IDENTITY_TEST = "tests/contract/test_attachment.py::test_switched_off_attaches_nothing"


def judge_targets(
    arms: Iterable[BenchArm], rows: Sequence[dict[str, Any]], identity: dict[str, Any] | None
) -> list[dict[str, Any]]:
    """One entry per arm with a target. A share has to hold in every cell.

    Shares are judged, and not the ratio of step times: two servers of one and the same program differ by more than the
    targets allow (`servers_ms` of the rows).

    identity: `compared` and `changed` of installation.py, or None if it could not be asked.
    """
    found = []
    for arm in arms:
        mine = [row for row in rows if row["arm"] == arm.id]
        if arm.identity:
            found.append(_identity(arm, mine, identity))
        if arm.share_limit is not None:
            found.append(_share(arm, mine))
    return found


def _share(arm: BenchArm, rows: list[dict[str, Any]]) -> dict[str, Any]:
    rows = [row for row in rows if row["probes_share"] is not None]
    entry = {"arm": arm.id, "target": "share of a step", "limit": arm.share_limit, "worst": _worst(rows)}
    if not rows:
        return entry | {"status": NOT_MEASURED}
    if any(row["device"] == HOST_DEVICE for row in rows):
        return entry | {"status": NOT_JUDGED}
    missed = any(row["probes_share"] > arm.share_limit for row in rows)
    return entry | {"status": MISSED if missed else MET}


def _identity(arm: BenchArm, rows: list[dict[str, Any]], identity: dict[str, Any] | None) -> dict[str, Any]:
    entry = {"arm": arm.id, "target": "identity", "proof": identity, "test": IDENTITY_TEST, "worst": _worst(rows)}
    if identity is None or not identity["compared"]:
        return entry | {"status": NOT_MEASURED}
    return entry | {"status": MISSED if identity["changed"] else MET}


def _worst(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The row with the largest share, or, of an arm without probes, with the largest ratio."""
    compared = [row for row in rows if row["step_ratio_to_none"] is not None]
    if not compared:
        return None
    row = max(compared, key=lambda row: (row["probes_share"] or 0, row["step_ratio_to_none"]["median"]))
    return {
        "mtp": row["mtp"],
        "batch": row["batch"],
        "share": row["probes_share"],
        "ratio": row["step_ratio_to_none"],
    }
