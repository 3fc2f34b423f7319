"""Reads what a run left in its folder into Evidence."""

from __future__ import annotations

from pathlib import Path

from gemma4_dumps.store import DumpStore
from gemma4_dumps.wording import number_of
from gemma4_repro.corpus.case import Case, CleanCase
from gemma4_repro.corpus.matrix import Evidence, Sighting
from gemma4_repro.engine.outcome import Ending, Outcome
from gemma4_repro.recorders.steps import STEPS_NAME, read_step_times, step_at

_HELD_BACK = 2


def gather(case: Case, outcome: Outcome) -> Evidence:
    """Dumps in the order in which they were written, and whether the load was served whole."""
    entries = sorted(DumpStore(outcome.dumps).list(), key=lambda entry: (entry.created_utc, entry.dump_id))
    steps = read_step_times(outcome.folder / STEPS_NAME)
    sightings = tuple(
        Sighting(entry.path, entry.manifest, step_at(steps, entry.created_utc.timestamp()))
        for entry in entries
        if entry.manifest is not None
    )
    wanted = case.shows if isinstance(case, CleanCase) else ()
    return Evidence(
        sightings=sightings,
        unreadable=len(entries) - len(sightings),
        ending=ending_text(outcome),
        incomplete=_incomplete(case, outcome),
        missing=_missing(outcome.log, wanted) if wanted else (),
        duration_s=outcome.duration_s,
    )


def ending_text(outcome: Outcome) -> str:
    """`completed, accept length 2.31` or `crashed: IndexError: list index out of range`, as far as known."""
    if outcome.ending is Ending.COMPLETED and outcome.result is not None:
        length = outcome.result.accept_length
        return "completed" if length is None else f"completed, accept length {length:.2f}"
    why = outcome.problem or (f"{outcome.raised[0].type_name}: {outcome.raised[0].message}" if outcome.raised else "")
    return f"{outcome.ending.value}: {why}" if why else outcome.ending.value


def _incomplete(case: Case, outcome: Outcome) -> str | None:
    if outcome.ending is not Ending.COMPLETED or outcome.result is None or outcome.raised:
        return f"the load was not served whole: {ending_text(outcome)}"
    asked, aborted = _asked(case), case.workload.aborted
    for answer in outcome.result.answers:
        whole = len(answer.output_ids) >= asked[answer.prompt]
        if whole == (answer.prompt in aborted):
            return f"prompt {answer.prompt} was {'not aborted' if whole else 'cut short'}"
    idle = outcome.result.idle
    if not idle.flush_succeeded or idle.used_tokens_after_flush:
        return f"{number_of(idle.used_tokens_after_flush, 'token was', 'tokens were')} in use after the load"
    return None


def _asked(case: Case) -> list[int]:
    """Say how long each answer has to be. SGLang ends one without a limit two tokens before its context does."""
    pairs = zip(case.workload.prompts(), case.workload.new_tokens(), strict=True)
    return [
        case.engine["context_length"] - _HELD_BACK - len(prompt) if count is None else count for prompt, count in pairs
    ]


def _missing(log: Path, wanted: tuple[str, ...]) -> tuple[str, ...]:
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return tuple(words for words in wanted if words not in text)
