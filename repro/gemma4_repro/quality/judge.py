"""Judges what two sides answered, part by part: is `with` worse than `base`, beyond what chance explains? Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pydantic import BaseModel, Field

from gemma4_dumps.errors import ExitCode
from gemma4_dumps.wording import number_of
from gemma4_repro.quality import colours, mmlu, paired
from gemma4_repro.quality.ask import COLOURS, MMLU, Answer, Item
from gemma4_repro.quality.paired import Pairs
from gemma4_repro.quality.run import BASE, WITH, Measured, Paths
from gemma4_runtime.catalog import CATALOG

GUESSES = {MMLU: mmlu.GUESS, COLOURS: colours.GUESS}
WORSE, BETTER, NO_WORSE, NOT_JUDGED = "worse", "better", "no worse", "not judged"


class Score(BaseModel):
    """How one side did in one part: requests by what became of them. `right`, `unreadable`: of its answers."""

    answered: int
    right: int
    unreadable: int
    failed: int
    not_asked: int


class PartVerdict(BaseModel):
    """One part, judged. `difference` and its interval are shares, with minus base; None where nothing was compared.

    `verdict`: "worse" or "better" if the whole interval lies on that side of zero, else "no worse"; "not judged" if a
    loss could not have shown, and `why` says why.
    """

    part: str
    items: int
    base: Score
    with_: Score = Field(serialization_alias="with")
    compared: int
    both_right: int
    only_base_right: int
    only_with_right: int
    neither_right: int
    equal_replies: int
    difference: float | None
    interval_low: float | None
    interval_high: float | None
    mcnemar_p: float | None
    verdict: str
    why: str
    lost_items: list[str]


def judge_part(part: str, items: Sequence[Item], measured: Measured) -> PartVerdict:
    """Compare what both sides answered of one part, item by item."""
    ids = [item.id for item in items if item.part == part]
    base, other = ({one.id: one for one in _answers(measured, name) if one.part == part} for name in (BASE, WITH))
    both = [id for id in ids if id in base and id in other and not base[id].error and not other[id].error]
    lost = [id for id in both if base[id].right and not other[id].right]
    pairs = Pairs(
        both=sum(base[id].right and other[id].right for id in both),
        only_base=len(lost),
        only_with=sum(other[id].right and not base[id].right for id in both),
        neither=sum(not base[id].right and not other[id].right for id in both),
    )
    low, high = paired.interval(pairs) if both else (None, None)
    verdict, why = _verdict(pairs, low, high, GUESSES[part])
    return PartVerdict(
        part=part,
        items=len(ids),
        base=_score(base, ids),
        with_=_score(other, ids),
        compared=len(both),
        both_right=pairs.both,
        only_base_right=pairs.only_base,
        only_with_right=pairs.only_with,
        neither_right=pairs.neither,
        equal_replies=sum(base[id].reply == other[id].reply for id in both),
        difference=pairs.difference if both else None,
        interval_low=low,
        interval_high=high,
        mcnemar_p=paired.mcnemar_p(pairs) if both else None,
        verdict=verdict,
        why=why,
        lost_items=lost,
    )


def _verdict(pairs: Pairs, low: float | None, high: float | None, guess: float) -> tuple[str, str]:
    if low is None or high is None:
        return NOT_JUDGED, "no prompt was answered by both sides"
    if high < 0:
        return WORSE, ""
    if low > 0:
        return BETTER, ""
    right = pairs.both + pairs.only_base
    if not paired.beats_guessing(right, pairs.count, guess):
        return (
            NOT_JUDGED,
            f"base answered {right} of {pairs.count} right, no more than guessing gives ({guess:.0%}): "
            "there is nothing that could be lost",
        )
    return NO_WORSE, ""


def _answers(measured: Measured, side: str) -> Sequence[Answer]:
    asked = measured.asked.get(side)
    return asked.answers if asked else ()


def _score(answers: Mapping[str, Answer], ids: Sequence[str]) -> Score:
    good = [answer for answer in answers.values() if not answer.error]
    return Score(
        answered=len(good),
        right=sum(answer.right for answer in good),
        unreadable=sum(answer.read is None for answer in good),
        failed=len(answers) - len(good),
        not_asked=len(ids) - len(answers),
    )


class SideRecord(BaseModel):
    """A side: its model, why it was not asked everything, and `Measured.paths`."""

    model: str
    ended: str
    paths: Paths | None
    paths_at_start: Paths | None


class PatchRecord(BaseModel):
    """Whether a patch of one side alone did its work there: how often while asked, and before that.

    None if it does not count, or the server does not say.
    """

    patch: str
    side: str
    times: int | None
    times_at_start: int | None


class Verdict(BaseModel):
    """What a run comes to. `reasons`: sentences on why the exit code is not 0."""

    sides: dict[str, SideRecord]
    parts: list[PartVerdict]
    patches: list[PatchRecord]
    exit_code: int
    interrupted: bool
    reasons: list[str]


def judge(items: Sequence[Item], measured: Measured, chosen: Mapping[str, Sequence[str]]) -> Verdict:
    """Judge every part that was asked.

    Args:
        items: What was to be asked.
        measured: What came of it.
        chosen: By side, the patches of a server that was started for this; empty where unknown.
    """
    parts = [judge_part(part, items, measured) for part in dict.fromkeys(item.part for item in items)]
    patches = list(_patches(measured, chosen))
    violations = [
        f"{part.part}: with is worse than base, beyond the interval" for part in parts if part.verdict == WORSE
    ]
    answering = [side for side, asked in measured.asked.items() if any(not answer.error for answer in asked.answers)]
    ended = [f"{side}: {asked.ended}" for side, asked in measured.asked.items() if asked.ended]
    # Where no side answered anything, most likely the request was wrong.
    violations += ended if answering else []
    if failed := _failed_with_only(measured):
        violations.append(f"with failed {number_of(failed, 'request')} that base answered")
    gaps = [] if answering else ended
    gaps += [f"{part.part} is not judged: {part.why}" for part in parts if part.verdict == NOT_JUDGED]
    if patches and all(patch.times == 0 and not patch.times_at_start for patch in patches):
        gaps.append("none of the patches in which the sides differ did its work, so the answers say nothing of them")
    code = ExitCode.VIOLATION if violations else ExitCode.NOTHING_CHECKED if gaps else ExitCode.OK
    sides = {
        side: SideRecord(
            model=asked.model,
            ended=asked.ended,
            paths=measured.paths.get(side),
            paths_at_start=measured.paths_at_start.get(side),
        )
        for side, asked in measured.asked.items()
    }
    reasons = violations + gaps
    if measured.interrupted:
        code, reasons = ExitCode.INTERRUPTED, ["interrupted", *reasons]
    return Verdict(
        sides=sides,
        parts=parts,
        patches=patches,
        exit_code=code,
        interrupted=measured.interrupted,
        reasons=reasons,
    )


def _patches(measured: Measured, chosen: Mapping[str, Sequence[str]]) -> Iterator[PatchRecord]:
    for patch in CATALOG:
        having = [side for side, ids in chosen.items() if patch.id in ids]
        if len(having) != 1:
            continue
        (side,) = having
        times, at_start = (
            sum(paths.get(patch.id, {}).get(path, 0) for path in patch.own_paths)
            if patch.own_paths and (paths := told.get(side)) is not None
            else None
            for told in (measured.paths, measured.paths_at_start)
        )
        yield PatchRecord(patch=patch.id, side=side, times=times, times_at_start=at_start)


def _failed_with_only(measured: Measured) -> int:
    answered = {answer.id for answer in _answers(measured, BASE) if not answer.error}
    return sum(bool(answer.error) and answer.id in answered for answer in _answers(measured, WITH))
