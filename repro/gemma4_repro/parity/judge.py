"""What a comparison's runs come to: per side the differences from its reference, their causes, and an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gemma4_dumps.errors import ExitCode
from gemma4_repro.engine.outcome import Ending
from gemma4_repro.parity.compare_tracks import LayerDifference, PromptComparison, Tolerances, compare_tracks
from gemma4_repro.parity.exercise import Exercise
from gemma4_repro.parity.pressure import Death
from gemma4_repro.parity.runner import ArmRun, LiveRun
from gemma4_repro.parity.side import ChosenPatches
from gemma4_repro.parity.tracks import Oracle, Track
from gemma4_repro.parity.window_evidence import WindowCause, window_cause

TRANSFORMERS = "transformers"


@dataclass(frozen=True)
class Cause:
    """Where a side first parts from its reference, once per cause.

    Attributes:
        prompts: all that show the same.
        widths_tried: whether the oracle has tried other widths of the sliding window.
    """

    prompt: int
    place: LayerDifference
    layer_type: str
    window: WindowCause | None
    prompts: tuple[int, ...]
    widths_tried: bool = True


@dataclass(frozen=True)
class SideVerdict:
    """One column.

    Attributes:
        reference: TRANSFORMERS or a side's id.
        comparisons: one per prompt, none if a run gave no answers.
        more_violations: the side left dumps, and more of them than its reference.
    """

    arm: ArmRun
    reference: str
    comparisons: tuple[PromptComparison, ...]
    causes: tuple[Cause, ...]
    more_violations: bool

    @property
    def completed(self) -> bool:
        return self.arm.outcome.ending is Ending.COMPLETED

    @property
    def agrees(self) -> bool | None:
        """Whether tokens and logprobs are the reference's; None if there was nothing to compare."""
        return all(comparison.agrees for comparison in self.comparisons) if self.comparisons else None

    @property
    def good(self) -> bool:
        """Came to its end, agrees, and no probe found more than in the reference."""
        return self.completed and self.agrees is True and not self.more_violations

    @property
    def status(self) -> str:
        """`agrees`, `differs`, `violations`, or how it ended."""
        if not self.completed:
            return "trapped" if self.arm.outcome.first("TrappedViolation") else self.arm.outcome.ending.value
        if self.agrees is None:
            return "not compared"
        if not self.agrees:
            return "differs"
        return "violations" if self.more_violations else "agrees"


@dataclass(frozen=True)
class Column:
    """One engine run.

    Attributes:
        oracle: against transformers, always.
        gate: what decides; None for a base, the measure.
        death: how far it came, if not to its end.
    """

    arm: ArmRun
    oracle: SideVerdict
    gate: SideVerdict | None
    death: Death | None = None

    @property
    def shown(self) -> SideVerdict:
        """The verdict whose differences are shown."""
        return self.gate or self.oracle


@dataclass(frozen=True)
class Agreement:
    """What both `diff backends` and `diff patches` end in.

    Attributes:
        exercises: of the patches in which sides differ, or of the faults that all have.
        chosen: the patches of every side, where they are the same.
    """

    run: LiveRun
    tolerances: Tolerances
    columns: tuple[Column, ...]
    exit_code: int
    exercises: tuple[Exercise, ...] = ()
    chosen: ChosenPatches | None = None

    @property
    def deciding(self) -> tuple[SideVerdict, ...]:
        """Return the verdicts that decide, in the order of the columns."""
        return tuple(column.gate for column in self.columns if column.gate)


def against_transformers(run: LiveRun, tolerances: Tolerances) -> tuple[SideVerdict, ...]:
    """Return every side against the oracle; any dump of a probe is one too many."""
    return tuple(
        _verdict(arm, TRANSFORMERS, run.oracle.tracks, run.oracle, bool(arm.dumps), tolerances) for arm in run.arms
    )


def against_base(run: LiveRun, pairs: Sequence[tuple[str, str]], tolerances: Tolerances) -> tuple[SideVerdict, ...]:
    """pairs: ids of sides (base, with). One verdict for each `with`."""
    verdicts = []
    for base_id, with_id in pairs:
        base, other = run.arm(base_id), run.arm(with_id)
        more = len(other.dumps) > len(base.dumps)
        verdicts.append(_verdict(other, base_id, base.tracks, run.oracle, more, tolerances))
    return tuple(verdicts)


def exit_code(
    verdicts: Sequence[SideVerdict], bases: Sequence[ArmRun] = (), nothing_exercised: bool = False
) -> ExitCode:
    """Return 0: all agree, 1: something differs, 5: nothing was compared.

    Nothing was compared if no base came to its end; of a comparison of patch sets, a base that crashed says nothing
    against the other side. Nor was it if `nothing_exercised`: the patches in which the sides differ never did their
    work, so that agreement says nothing.
    """
    if bases and not any(base.tracks for base in bases):
        return ExitCode.NOTHING_CHECKED
    if not all(verdict.good for verdict in verdicts):
        return ExitCode.VIOLATION
    return ExitCode.NOTHING_CHECKED if nothing_exercised else ExitCode.OK


def _verdict(
    arm: ArmRun,
    reference: str,
    tracks: Sequence[Track],
    oracle: Oracle,
    more_violations: bool,
    tolerances: Tolerances,
) -> SideVerdict:
    by_prompt = {track.prompt: track for track in tracks}
    pairs = [(by_prompt[track.prompt], track) for track in arm.tracks if track.prompt in by_prompt]
    compared = tuple(compare_tracks(first, second, tolerances) for first, second in pairs)
    causes = [
        _cause(oracle, first, second, comparison, arm.side.backend, tolerances)
        for (first, second), comparison in zip(pairs, compared, strict=True)
        if comparison.layer is not None
    ]
    return SideVerdict(arm, reference, compared, _once_each(causes), more_violations)


def _cause(
    oracle: Oracle, first: Track, second: Track, comparison: PromptComparison, backend: str, tolerances: Tolerances
) -> Cause:
    place = comparison.layer
    assert place is not None
    window = window_cause(oracle, first, second, place, backend, tolerances)
    tried = bool(oracle.varied.get(comparison.prompt))
    return Cause(comparison.prompt, place, oracle.layer_types[place.layer], window, (comparison.prompt,), tried)


def _once_each(causes: Sequence[Cause]) -> tuple[Cause, ...]:
    """Merge those of the same width and fix into one, shown where it comes first; others count by themselves."""
    kept: dict[object, Cause] = {}
    for cause in sorted(causes, key=lambda cause: (cause.place.position, cause.prompt)):
        window = cause.window
        key = (window.reference.keys, window.other.keys, window.fix) if window else cause.prompt
        first = kept.get(key, cause)
        prompts = tuple(sorted({*first.prompts, *cause.prompts}))
        kept[key] = replace(first, prompts=prompts)
    return tuple(kept.values())
