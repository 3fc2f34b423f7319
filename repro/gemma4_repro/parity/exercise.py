"""Whether a comparison of patch sets came through the patches in which they differ. Pure.

Two sides that agree say nothing about a patch that never did its work: the text of a toy has no pictures, a dense model
no experts. A patch that counts its paths says so itself; of any other it is known whether the run came to a function
that it hooks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gemma4_repro.parity.load import hides_prompts
from gemma4_repro.parity.runner import ArmRun, LiveRun
from gemma4_repro.parity.side import Side
from gemma4_runtime.catalog import CATALOG
from gemma4_runtime.catalog.shared_hooks import REPORTING
from gemma4_runtime.patch import Patch

_STATE = "scheduler.internal_state"
"""Hooked to report, not to work."""


@dataclass(frozen=True)
class Exercise:
    """One patch in which the sides differ.

    Attributes:
        sides: ids of those that have it and on which it did its work.
        counted: it says so itself; otherwise a function that it hooks was called, which is all that is known.
        reasons: why not, of the other sides, each once.
    """

    patch: str
    counted: bool
    sides: tuple[str, ...]
    reasons: tuple[str, ...]

    @property
    def done(self) -> bool:
        return bool(self.sides)


def differing(base: Side, other: Side) -> tuple[str, ...]:
    """Ids of fixes, optimisations and faults that one of the two has and the other has not, in the catalog's order."""
    differ = set(base.chosen) ^ set(other.chosen)
    return tuple(patch.id for patch in CATALOG if patch.id in differ)


def watched(compared: Iterable[str]) -> tuple[str, ...]:
    """Target keys by which the exercise of these patches is known, beside the paths that they count."""
    targets = [target for patch in _patches(compared) for target in _targets(patch)]
    return tuple(dict.fromkeys(targets))


def exercises(run: LiveRun) -> tuple[Exercise, ...]:
    """Return each patch in which the sides of `run` differ."""
    found = []
    for patch in _patches(run.compared):
        having = [arm for arm in run.arms if patch.id in arm.side.chosen]
        done = tuple(arm.side.id for arm in having if _did_its_work(patch, arm))
        reasons = [reason for arm in having if arm.side.id not in done for reason in _reasons(patch, arm)]
        found.append(Exercise(patch.id, bool(patch.own_paths), done, tuple(dict.fromkeys(reasons))))
    return tuple(found)


def nothing_exercised(run: LiveRun, found: Sequence[Exercise]) -> bool:
    """Say whether agreement would say nothing: no patch did its work, or none for which prompts were left out."""
    left_out = () if run.prompt_logprobs else hides_prompts(run.compared)
    deciding = [one for one in found if not left_out or one.patch in left_out]
    return bool(deciding) and not any(one.done for one in deciding)


def _patches(ids: Iterable[str]) -> Iterator[Patch]:
    wanted = set(ids)
    return (patch for patch in CATALOG if patch.id in wanted)


def _targets(patch: Patch) -> list[str]:
    work = (one for one in patch.attachments if one not in REPORTING)
    return [attachment.target for attachment in work if attachment.target != _STATE]


def _did_its_work(patch: Patch, arm: ArmRun) -> bool:
    if patch.own_paths:
        return any(path in _paths(patch, arm) for path in patch.own_paths)
    return not arm.reached.isdisjoint(_targets(patch))


def _reasons(patch: Patch, arm: ArmRun) -> Iterator[str]:
    if patch.own_paths and arm.outcome.result is None:
        yield "a run came to no end, so its counts are not known"
    elif paths := _paths(patch, arm):
        yield from paths
    else:
        yield "no run came to what it changes"


def _paths(patch: Patch, arm: ArmRun) -> dict[str, int]:
    result = arm.outcome.result
    return result.paths.get(patch.id, {}) if result else {}
