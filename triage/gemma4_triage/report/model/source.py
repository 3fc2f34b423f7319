"""What a report is asked to be about: a run's folder, or dumps and folders of dumps, and serving logs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gemma4_dumps.manifest_file import MANIFEST_NAME
from gemma4_dumps.store import DumpStore
from gemma4_dumps.wording import number_of
from gemma4_repro.engine.run_folder import VERDICT_NAME
from gemma4_triage.diagnose.material import Budget, Material, read_store
from gemma4_triage.diagnose.sources import Evidence, gather
from gemma4_triage.errors import UsageMistake
from gemma4_triage.own_document import own_document
from gemma4_triage.readers.catalog import head_of
from gemma4_triage.runs.record_file import RunRecord, read_record

DUMPS, LOG = "dumps", "log.txt"


@dataclass(frozen=True)
class Piece:
    """Material of one arm or case, or all there is; `expected` if it went as it should."""

    label: str
    expected: bool
    material: Material


@dataclass(frozen=True)
class Source:
    """What was named, read.

    Attributes:
        names: as they were given.
        verdict: of a run that ended.
        pieces: dumps and what lies beside them, by arm.
        arm_logs: the logs of a run's arms, those that are there.
        notes: what a reader has to know.
        found: serving logs, and what readers made of other files, in what was named.
    """

    names: tuple[str, ...]
    verdict: RunRecord | None
    pieces: tuple[Piece, ...]
    arm_logs: tuple[tuple[str, Path], ...] = ()
    notes: tuple[str, ...] = ()
    found: Evidence = field(default_factory=Evidence)


def read_run_or_dumps(store: DumpStore, names: Sequence[str], limit: int | None) -> Source:
    """Read what was named.

    Args:
        store: where names are looked for.
        names: none for all that `store` holds.
        limit: of each folder, only so many of its newest dumps.

    Raises UsageMistake, NothingChecked for an empty folder, DumpError for what was named and cannot be read.
    """
    if not names:
        budget = Budget(limit is not None)
        piece = Piece("", False, read_store(store, limit, budget))
        notes = (budget.remark,) if budget.remark else ()
        return Source((str(store.root),), None, (piece,), (), notes, Evidence(not_read=budget.skipped))
    runs = [Path(name) for name in names if os.path.lexists(Path(name) / VERDICT_NAME) or _is_verdict(name)]
    if runs:
        if len(names) > 1:
            raise UsageMistake(
                f"{runs[0]} is a finished run, and {len(names)} names are given", "a report is of one run, or of dumps"
            )
        return _run(runs[0], limit)
    if len(names) == 1 and (arms := _arms_without_verdict(Path(names[0]))):
        return _unfinished(Path(names[0]), arms, limit)
    found = gather(store, names, limit)
    notes = (f"{number_of(found.left_alone, 'file')} that are no evidence",) if found.left_alone else ()
    piece = Piece("", False, found.material)
    notes = (*found.remarks, *notes)
    return Source(tuple(names), None, (piece,), (), notes, found)


def nothing_but_logs() -> Source:
    """Return the source of a report on serving logs alone."""
    return Source((), None, ())


def _is_verdict(name: str) -> bool:
    """Return whether a name is that of a finished run's record, whatever the file is called."""
    try:
        own = own_document(head_of(Path(name)), name) if os.path.isfile(name) else None
    except OSError:
        # Reading it says why.
        return False
    return own is not None and own.is_run


def _run(place: Path, limit: int | None) -> Source:
    verdict = read_record(place)
    folder = place.parent if place.is_file() else place
    pieces = tuple(
        Piece(name, good, read_store(DumpStore(folder / name / DUMPS), limit)) for name, good in verdict.parts
    )
    logs = tuple((name, folder / name / LOG) for name in verdict.with_logs if (folder / name / LOG).is_file())
    return Source((str(place),), verdict, pieces, logs)


def _arms_without_verdict(folder: Path) -> list[Path]:
    """Return the folders of arms in a run's folder that has no verdict."""
    # os.path says no of what it may not look at or cannot name; the reading of it says why.
    if not os.path.isdir(folder) or os.path.lexists(folder / MANIFEST_NAME) or DumpStore(folder).names():
        return []
    return sorted(path for path in folder.iterdir() if os.path.isdir(path / DUMPS))


def _unfinished(folder: Path, arms: Sequence[Path], limit: int | None) -> Source:
    pieces = tuple(Piece(arm.name, False, read_store(DumpStore(arm / DUMPS), limit)) for arm in arms)
    logs = tuple((arm.name, arm / LOG) for arm in arms if (arm / LOG).is_file())
    return Source((str(folder),), None, pieces, logs, (f"{VERDICT_NAME} is not there: the run did not end",))
