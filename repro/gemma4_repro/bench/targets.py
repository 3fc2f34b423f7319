"""Targets against rows: met, missed, or not measured.

A cell (MTP setting and batch) holds a limit in one of two ways:

| held by    | if                                                                                                 |
|------------|----------------------------------------------------------------------------------------------------|
| `own code` | what the probes' code takes of the scheduler's thread, over a step of the reference, is within it   |
| `step`     | the step is: the upper end of its interval, and what `off` differs from the reference by, added     |

The first is judged wherever it can be, because two servers of one and the same program may differ by more than the
limits allow (`servers_ms` of the rows). The second is for steps that hide a scheduler's work behind the device's; `off`
runs the code that the reference runs, so what it differs by is what the measurement cannot tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from gemma4_repro.bench.arms import OFF, BenchArm
from gemma4_repro.bench.rows import HOST_DEVICE

MET, MISSED, NOT_MEASURED, NOT_JUDGED = "met", "missed", "not measured", "not judged"
IDENTITY_TEST = "tests/contract/test_attachment.py::test_switched_off_attaches_nothing"


def judge_targets(
    arms: Iterable[BenchArm], rows: Sequence[dict[str, Any]], identity: dict[str, Any] | None
) -> list[dict[str, Any]]:
    """Return one entry per arm with a target. A limit has to hold in every cell.

    `identity` is `compared` and `changed` of installation.py, or None if it could not be asked.
    """
    found = []
    for arm in arms:
        mine = [row for row in rows if row["arm"] == arm.id]
        if arm.identity:
            found.append(_identity(arm, mine, identity))
        if arm.share_limit is not None:
            found.append(_share(arm, arm.share_limit, mine, rows))
    return found


def _share(
    arm: BenchArm, limit: float, mine: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    mine = [row for row in mine if row["probes_share"] is not None]
    noise = {_cell(row): _noise(row) for row in rows if row["arm"] == OFF}
    cells = [_held(row, limit, noise.get(_cell(row))) for row in mine]
    entry = {"arm": arm.id, "target": "share of a step", "limit": limit, "cells": cells, "worst": _worst(mine)}
    if not mine:
        return entry | {"status": NOT_MEASURED}
    if any(row["device"] == HOST_DEVICE for row in mine):
        return entry | {"status": NOT_JUDGED}
    return entry | {"status": MET if all(cell["held_by"] for cell in cells) else MISSED}


def _held(row: dict[str, Any], limit: float, noise: float | None) -> dict[str, Any]:
    """noise: how far `off` may be from the reference, as a share of a step; None if that is not known."""
    step = None
    ratio = row["step_ratio_to_none"]
    if noise is not None and ratio is not None and ratio["high"] is not None:
        step = round(ratio["high"] - 1 + noise, 5)
    held_by = "own code" if row["probes_share"] <= limit else "step" if step is not None and step <= limit else None
    about = {"mtp": row["mtp"], "batch": row["batch"], "own_code": row["probes_share"], "step_at_most": step}
    return about | {"held_by": held_by}


def _noise(row: dict[str, Any]) -> float | None:
    """Return the end of `off`'s interval that is farther from 1."""
    ratio = row["step_ratio_to_none"]
    if ratio is None or ratio["low"] is None:
        return None
    return max(abs(ratio["low"] - 1), abs(ratio["high"] - 1))


def _cell(row: dict[str, Any]) -> tuple[bool, int]:
    return row["mtp"], row["batch"]


def _identity(arm: BenchArm, rows: list[dict[str, Any]], identity: dict[str, Any] | None) -> dict[str, Any]:
    entry = {"arm": arm.id, "target": "identity", "proof": identity, "test": IDENTITY_TEST, "worst": _worst(rows)}
    if identity is None or not identity["compared"]:
        return entry | {"status": NOT_MEASURED}
    return entry | {"status": MISSED if identity["changed"] else MET}


def _worst(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the row with the largest share, or, of an arm without probes, with the largest ratio."""
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
