"""Holds what a diagnosis said against what is known to be true. Pure.

A finding says itself which structure it is about and in which way that is wrong, in the words of the grid; nothing here
knows any rule by its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from gemma4_dumps.structures import Defect, Structure
from gemma4_dumps.wording import DUMP_MARK
from gemma4_repro.engine.outcome import Ending, Outcome
from gemma4_repro.mutations.draw import Mutation
from gemma4_repro.mutations.grid import Server
from gemma4_repro.mutations.truth import Truth

_CHECKER = "leak detected"
"""In what SGLang's own checker of the pools raises."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Named(_Record):
    """A cause that the diagnosis named. owner: the row of req_to_token that its evidence names."""

    rule: str
    cause: str
    confidence: str
    structure: Structure | None = None
    defect: Defect | None = None
    owner: int | None = None


class Sight(_Record):
    """What a guarded run left.

    Attributes:
        named: The causes, in the order in which the diagnosis ranks them.
        dumps: How many there are.
        first_step: The scheduler's step in which the first was written; 0 before the first step.
        ending: How the engine ended, in words.
    """

    named: tuple[Named, ...] = ()
    dumps: int = 0
    first_step: int | None = None
    ending: str = ""


class Noticed(StrEnum):
    """What SGLang itself made of it."""

    CHECKER = "checker"
    CRASH = "crash"
    HANG = "hang"
    NOTHING = "nothing"


class Effect(_Record):
    """What the same mutation does without probes. tokens_changed: None if the load was not served whole."""

    noticed: Noticed
    ending: str
    tokens_changed: bool | None = None
    accept_length: float | None = None


class Clean(_Record):
    """The same load without a mutation. answers: tokens by prompt. named: has to be empty."""

    mtp: bool
    server: Server = Server.STEPWISE
    answers: Mapping[int, tuple[int, ...]] = {}
    accept_length: float | None = None
    named: tuple[Named, ...] = ()
    dumps: int = 0
    ending: str = ""

    @property
    def silent(self) -> bool:
        """Nothing was found, and the load was served whole."""
        return not self.named and not self.dumps and bool(self.answers)


class State(StrEnum):
    """Whether a run says anything. INERT: overwritten, no reader came in between, and nothing came of it."""

    ACTED = "acted"
    INERT = "inert"
    NEVER_ACTED = "never acted"
    HARNESS = "harness failed"


class Cause(StrEnum):
    """How the first cause named stands to the truth."""

    RIGHT = "right"
    PARTLY = "partly"
    UNKNOWN = "unknown"
    WRONG = "wrong"
    UNSEEN = "unseen"


class Owner(StrEnum):
    """How the owner named stands to the truth. UNJUDGED: the truth has none, as of a page that is free."""

    RIGHT = "right"
    WRONG = "wrong"
    NOT_NAMED = "not named"
    UNJUDGED = "unjudged"


class Row(_Record):
    """One mutation, scored. steps_late: how many steps after it acted the first dump was written."""

    mutation: Mutation
    truth: Truth
    sight: Sight
    state: State
    cause: Cause
    owner: Owner
    duration_s: float
    effect: Effect | None = None
    steps_late: int | None = None

    @property
    def seen(self) -> bool:
        """A cause was named, right or wrong."""
        return bool(self.sight.named)

    @property
    def confidence(self) -> str | None:
        """The certainty of the first cause named."""
        return self.sight.named[0].confidence if self.sight.named else None


def score(mutation: Mutation, truth: Truth, sight: Sight, effect: Effect | None, duration_s: float) -> Row:
    """Score one mutation.

    Args:
        mutation: What was drawn.
        truth: What was done.
        sight: What the guarded run left.
        effect: What the bare run did; None if there was none.
        duration_s: Of both runs.
    """
    late = None
    if truth.acted is not None and sight.first_step is not None:
        late = sight.first_step - truth.acted.step
    return Row(
        mutation=mutation,
        truth=truth,
        sight=sight,
        effect=effect,
        state=_state(truth, effect),
        cause=_cause(mutation, sight.named),
        owner=_owner(truth, sight.named),
        steps_late=late,
        duration_s=duration_s,
    )


def _state(truth: Truth, effect: Effect | None) -> State:
    if truth.problem is not None:
        return State.HARNESS
    if truth.acted is None:
        return State.NEVER_ACTED
    # What had an effect was read, also where the trace of reads does not know the reader.
    had_effect = effect is not None and (effect.noticed is not Noticed.NOTHING or bool(effect.tokens_changed))
    return State.INERT if truth.inert and not had_effect else State.ACTED


def _cause(mutation: Mutation, named: Sequence[Named]) -> Cause:
    if not named:
        return Cause.UNSEEN
    first = named[0]
    if first.structure is None:
        return Cause.UNKNOWN
    if first.structure is not mutation.structure:
        return Cause.WRONG
    return Cause.RIGHT if first.defect is mutation.defect else Cause.PARTLY


def _owner(truth: Truth, named: Sequence[Named]) -> Owner:
    if truth.row is None:
        return Owner.UNJUDGED
    if not named or named[0].owner is None:
        return Owner.NOT_NAMED
    return Owner.RIGHT if named[0].owner in (truth.row, truth.partner_row) else Owner.WRONG


def effect_of(outcome: Outcome, clean: Clean) -> Effect:
    """Return what a run without probes came to, beside the clean run of the same load."""
    result = outcome.result if outcome.ending is Ending.COMPLETED else None
    tokens = None if result is None else {answer.prompt: answer.output_ids for answer in result.answers}
    return Effect(
        noticed=_noticed(outcome),
        ending=ending_text(outcome),
        tokens_changed=None if tokens is None or not clean.answers else tokens != dict(clean.answers),
        accept_length=None if result is None else result.accept_length,
    )


def _noticed(outcome: Outcome) -> Noticed:
    if outcome.ending is Ending.TIMED_OUT:
        return Noticed.HANG
    if any(_CHECKER in raised.message for raised in outcome.raised):
        return Noticed.CHECKER
    return Noticed.NOTHING if outcome.ending is Ending.COMPLETED else Noticed.CRASH


def ending_text(outcome: Outcome) -> str:
    """Return how a run ended, with the first exception's type and the beginning of what it said."""
    if outcome.ending is Ending.COMPLETED:
        return outcome.ending.value
    # Where the dump lies is of this machine, and says nothing of the run.
    raised = (f"{one.type_name}: {one.message.partition(DUMP_MARK)[0][:160]}" for one in outcome.raised)
    why = outcome.problem or next(raised, "")
    return f"{outcome.ending.value}: {why}" if why else outcome.ending.value
