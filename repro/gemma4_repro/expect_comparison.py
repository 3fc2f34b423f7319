"""What should differ from another arm, and what should not."""

from __future__ import annotations

from dataclasses import dataclass

from gemma4_dumps.wording import number_of
from gemma4_repro.draft_comparison import compare_drafts, read_drafts
from gemma4_repro.engine.outcome import Outcome
from gemma4_repro.expectation import Check, Expectation


@dataclass(frozen=True)
class AcceptLengthFalls(Expectation):
    """Mean accept length is at most `at_most_ratio` of the reference arm's."""

    against: str
    at_most_ratio: float

    @property
    def reference(self) -> str:
        return self.against

    @property
    def text(self) -> str:
        return f"accept length at most {self.at_most_ratio:.0%} of {self.against}'s"

    def check(self, outcome: Outcome, reference: Outcome | None) -> Check:
        ours, theirs = _accept_length(outcome), _accept_length(reference)
        if ours is None:
            return self.judge(False, "no accept length was reported")
        if theirs is None:
            return self.not_compared(reference)
        numbers = {"accept_length": round(ours, 6), f"accept_length_{self.against}": round(theirs, 6)}
        return self.judge(ours <= self.at_most_ratio * theirs, f"{ours:.2f}, {self.against} {theirs:.2f}", numbers)


@dataclass(frozen=True)
class SameOutputs(Expectation):
    """Greedy output tokens equal the reference arm's: verification protects them."""

    against: str

    @property
    def reference(self) -> str:
        return self.against

    @property
    def text(self) -> str:
        return f"output tokens equal to {self.against}'s"

    def check(self, outcome: Outcome, reference: Outcome | None) -> Check:
        if outcome.result is None:
            return self.judge(False, "no outputs")
        if reference is None or reference.result is None:
            return self.not_compared(reference)
        theirs = {answer.prompt: answer.output_ids for answer in reference.result.answers}
        ours = {answer.prompt: answer.output_ids for answer in outcome.result.answers}
        unequal = sorted(prompt for prompt in ours.keys() | theirs.keys() if ours.get(prompt) != theirs.get(prompt))
        observed = (
            f"{number_of(outcome.result.output_tokens, 'token')}, equal" if not unequal else f"prompts {unequal} differ"
        )
        return self.judge(not unequal and bool(ours), observed, {"prompts_with_other_outputs": len(unequal)})


@dataclass(frozen=True)
class DraftsDiffer(Expectation):
    """At least this share of the draft tokens at equal prompt and position differs from the reference arm's."""

    against: str
    at_least_share: float

    @property
    def reference(self) -> str:
        return self.against

    @property
    def text(self) -> str:
        return f"at least {self.at_least_share:.0%} of drafts differ from {self.against}'s"

    def check(self, outcome: Outcome, reference: Outcome | None) -> Check:
        if reference is None or reference.result is None:
            return self.not_compared(reference)
        try:
            difference = compare_drafts(read_drafts(outcome.drafts), read_drafts(reference.drafts))
        except (OSError, ValueError) as error:
            return self.judge(False, f"the drafts cannot be read: {error}")
        numbers = {
            "draft_rounds_compared": difference.rounds,
            "draft_tokens_compared": difference.compared,
            "draft_tokens_differing": difference.differing,
            "drafts_differing_share": round(difference.share, 4),
        }
        observed = f"{difference.differing} of {difference.compared} ({difference.share:.0%})"
        return self.judge(difference.compared > 0 and difference.share >= self.at_least_share, observed, numbers)


def _accept_length(outcome: Outcome | None) -> float | None:
    return outcome.result.accept_length if outcome is not None and outcome.result is not None else None
