"""The rows of a draw as one matrix: totals, by structure and so on, and how they stand to the aims. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict

from gemma4_dumps.errors import ExitCode
from gemma4_repro.mutations.grid import GRID, NOT_MUTATED, left_out_on
from gemma4_repro.mutations.load import Probes
from gemma4_repro.mutations.score import Cause, Clean, Owner, Row, State

SCHEMA_VERSION = "1.0"
_CERTAIN, _LIKELY = "certain", "likely"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class Counts(_Record):
    """How many mutations of a kind came to what; those that are inert or never acted are counted apart.

    Attributes:
        drawn: All of them.
        judged: Those that acted and are not inert; what follows is of these.
        silent: Unseen, and neither SGLang nor the tokens showed anything: perhaps inert, not proved to be.
    """

    name: str
    drawn: int
    inert: int
    never_acted: int
    judged: int
    seen: int
    right: int
    partly: int
    unknown: int
    wrong: int
    certain_and_wrong: int
    owner_right: int
    owner_wrong: int
    noticed_by_sglang: int
    tokens_changed: int
    silent: int


class Reliability(_Record):
    """How often the first cause was right (or right in part) that was named with this certainty."""

    confidence: str
    named: int
    right: int
    partly: int
    unknown: int
    wrong: int


class Aim(_Record):
    """What the draw is held to. met: None where nothing was there."""

    text: str
    found: str
    met: bool | None


class Matrix(_Record):
    """A draw, as far as it was run.

    Attributes:
        probes: What looked at the engines.
        complete: Whether every mutation of it has a row.
        folder: The run's.
        engine_s: How long the engines of all mutations took together; two may run at once.
        left_out: By structure, which defects and phases have no cell, and why.
        not_mutated: What else memory safety rests on, and why no cell is about it.
    """

    schema_version: Literal["1.0"] = SCHEMA_VERSION
    kind: Literal["repro-mutations"] = "repro-mutations"
    seed: int
    count: int
    probes: Probes
    complete: bool
    sglang_version: str
    folder: str
    engine_s: float
    exit_code: int
    aims: tuple[Aim, ...]
    total: Counts
    by_structure: tuple[Counts, ...]
    by_defect: tuple[Counts, ...]
    by_phase: tuple[Counts, ...]
    by_server: tuple[Counts, ...]
    reliability: tuple[Reliability, ...]
    clean: tuple[Clean, ...]
    rows: tuple[Row, ...]
    left_out: dict[str, dict[str, str]]
    not_mutated: dict[str, str]


def matrix(
    seed: int,
    count: int,
    rows: Sequence[Row],
    clean: Sequence[Clean],
    sglang_version: str = "",
    folder: str = "",
    probes: Probes = Probes.TRAP,
) -> Matrix:
    """Return a draw's matrix. rows: in any order. Arguments else: see Matrix."""
    ordered = tuple(sorted(rows, key=lambda row: row.mutation.number))
    total = _counts("all", ordered)
    aims = _aims(total, ordered, clean)
    not_here = left_out_on(sglang_version) if sglang_version else {}
    return Matrix(
        seed=seed,
        count=count,
        probes=probes,
        complete=len(ordered) == count,
        sglang_version=sglang_version,
        folder=folder,
        engine_s=round(sum(row.duration_s for row in ordered), 1),
        exit_code=exit_code(total, aims),
        aims=aims,
        total=total,
        by_structure=_grouped(ordered, lambda row: row.mutation.structure.value),
        by_defect=_grouped(ordered, lambda row: row.mutation.defect.value),
        by_phase=_grouped(ordered, lambda row: row.mutation.phase.value),
        by_server=_grouped(ordered, lambda row: row.mutation.started),
        reliability=tuple(_reliability(word, ordered) for word in (_CERTAIN, _LIKELY, "possible")),
        clean=tuple(clean),
        rows=ordered,
        left_out={
            structure.value: {name.value: why for name, why in (*room.left_out.items(), *room.phases_left_out.items())}
            for structure, room in GRID.items()
            if structure not in not_here
        },
        not_mutated={**NOT_MUTATED, **{structure.value: why for structure, why in not_here.items()}},
    )


def exit_code(total: Counts, aims: Sequence[Aim]) -> ExitCode:
    """Return 5 where nothing was judged, 1 where an aim is missed, else 0."""
    if not total.judged:
        return ExitCode.NOTHING_CHECKED
    return ExitCode.VIOLATION if any(aim.met is False for aim in aims) else ExitCode.OK


def _grouped(rows: Sequence[Row], key: Callable[[Row], str]) -> tuple[Counts, ...]:
    names = sorted({key(row) for row in rows})
    return tuple(_counts(name, [row for row in rows if key(row) == name]) for name in names)


def _counts(name: str, rows: Sequence[Row]) -> Counts:
    states = Counter(row.state for row in rows)
    judged = _judged(rows)
    causes = Counter(row.cause for row in judged)
    owners = Counter(row.owner for row in judged)
    return Counts(
        name=name,
        drawn=len(rows),
        inert=states[State.INERT],
        never_acted=states[State.NEVER_ACTED] + states[State.HARNESS],
        judged=len(judged),
        seen=sum(row.seen for row in judged),
        right=causes[Cause.RIGHT],
        partly=causes[Cause.PARTLY],
        unknown=causes[Cause.UNKNOWN],
        wrong=causes[Cause.WRONG],
        certain_and_wrong=sum(row.cause is Cause.WRONG and row.confidence == _CERTAIN for row in judged),
        owner_right=owners[Owner.RIGHT],
        owner_wrong=owners[Owner.WRONG],
        noticed_by_sglang=sum(row.effect is not None and row.effect.noticed != "nothing" for row in judged),
        tokens_changed=sum(row.effect is not None and row.effect.tokens_changed is True for row in judged),
        silent=sum(_left_no_mark(row) for row in judged),
    )


def _judged(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.state is State.ACTED]


def _left_no_mark(row: Row) -> bool:
    unseen = row.cause is Cause.UNSEEN
    return unseen and row.effect is not None and row.effect.noticed == "nothing" and row.effect.tokens_changed is False


def _reliability(confidence: str, rows: Sequence[Row]) -> Reliability:
    of_it = Counter(row.cause for row in _judged(rows) if row.confidence == confidence)
    return Reliability(
        confidence=confidence,
        named=sum(of_it.values()),
        right=of_it[Cause.RIGHT],
        partly=of_it[Cause.PARTLY],
        unknown=of_it[Cause.UNKNOWN],
        wrong=of_it[Cause.WRONG],
    )


def _aims(total: Counts, rows: Sequence[Row], clean: Sequence[Clean]) -> tuple[Aim, ...]:
    likely, certain = _reliability(_LIKELY, rows), _reliability(_CERTAIN, rows)
    loud = sum(not one.silent for one in clean)
    right = certain.right + likely.right + _reliability("possible", rows).right
    named = total.owner_right + total.owner_wrong
    return (
        Aim(
            text="no cause is certain and wrong",
            found=str(total.certain_and_wrong),
            met=total.certain_and_wrong == 0 if total.judged else None,
        ),
        _share("wrong at most 3%", total.wrong, total.judged, lambda share: share <= 0.03),
        _share("right at least 70%", total.right, total.judged, lambda share: share >= 0.7),
        _share("every one that is not inert is seen", total.seen, total.judged, lambda share: share == 1),
        _share("inert at most 20% of the draw", total.inert, total.drawn, lambda share: share <= 0.2),
        _share("the owner right where one is named, at least 95%", total.owner_right, named, lambda s: s >= 0.95),
        _share("at least half of the right causes certain", certain.right, right, lambda share: share >= 0.5),
        _share("likely is right at least 75%", likely.right, likely.named, lambda share: share >= 0.75),
        Aim(text="clean loads are silent", found=f"{loud} are not", met=loud == 0 if clean else None),
    )


def _share(text: str, part: int, whole: int, holds: Callable[[float], bool]) -> Aim:
    if not whole:
        return Aim(text=text, found="none", met=None)
    return Aim(text=text, found=f"{part} of {whole}", met=holds(part / whole))
