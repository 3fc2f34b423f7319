"""Ranks of one server that decided differently what to run: by their batches, or by clocks of their own."""

from __future__ import annotations

from typing import NamedTuple

from gemma4_triage.finding import Confidence, Evidence
from gemma4_triage.logs.facts import LogFacts
from gemma4_triage.logs.late_pattern import pattern
from gemma4_triage.logs.rule import of_settings, over, remarked

LOOK = (
    "unset SGLANG_REQ_WAITING_TIMEOUT and SGLANG_REQ_RUNNING_TIMEOUT, if they are set: each rank read its own clock, "
    "before the change of SGLang 37143. Bound the queue by --max-queued-requests, and time by clients, instead",
    "once without --speculative-algorithm, and once with --disable-overlap-schedule: what ranks accept or abort has to "
    "be one rank's word",
)
"""What to do about ranks that decided differently."""
_CLOCKS = ("SGLANG_REQ_WAITING_TIMEOUT", "SGLANG_REQ_RUNNING_TIMEOUT")
_BATCH = pattern(r"batch_size\(\)=(\d+)")
_ALONE = ("1", "None")
_FOREVER = "they had decided differently, and wait for each other for ever."


class Decided(NamedTuple):
    """Holds what is said of ranks that decided differently, and by what it is known."""

    cause: str
    confidence: Confidence
    evidence: tuple[Evidence, ...]


def told(facts: LogFacts) -> Decided | None:
    """Return that ranks decided differently before they stood; None where nothing says so."""
    if facts.settings.get("dp_size", "1") not in _ALONE:
        return None
    both = [facts.remarks.get(name) for name in ("first_hung_batch", "hung_batch")]
    sizes = [match[1] for one in both if one is not None and (match := _BATCH.search(one.text))]
    if len(sizes) == 2 and sizes[0] != sizes[1]:
        cause = f"Ranks of one server had batches of {sizes[0]} and of {sizes[1]} requests as the watchdog fired: "
        shown = remarked(facts, "first_hung_batch", "one rank's batch")
        shown += remarked(facts, "hung_batch", "another rank's batch")
        return Decided(cause + _FOREVER, Confidence.LIKELY, tuple(shown))
    # Stages of a pipeline are at different batches as a matter of course.
    in_step = facts.settings.get("pp_size", "1") in _ALONE
    if in_step and (prefills := _last_prefills(facts)) is not None:
        cause = f"Ranks of one server prefilled {prefills[0]} and {prefills[1]} tokens in their last, same step: "
        shown = [
            over(facts, "prefill batches", count, f"new tokens of the last one, on {rank}")
            for rank, count in zip(prefills[2], prefills[:2], strict=True)
        ]
        # One that shows more of them may be a step ahead.
        alike = len({rank.prefill_lines for rank in facts.schedulers if rank.rank in prefills[2]}) == 1
        confidence = Confidence.LIKELY if alike else Confidence.POSSIBLE
        return Decided(cause + _FOREVER, confidence, (*shown, *of_settings(facts, *_CLOCKS)))
    if any(name in facts.arguments for name in _CLOCKS) and facts.settings.get("tp_size", "1") not in _ALONE:
        cause = (
            "A scheduler made no progress until its watchdog fired. Its ranks give requests up after a time that is "
            "set, and each goes by its own clock: one that has given up a request another has not stands with it."
        )
        return Decided(cause, Confidence.POSSIBLE, tuple(of_settings(facts, *_CLOCKS)))
    return None


def _last_prefills(facts: LogFacts) -> tuple[int, int, tuple[str, str]] | None:
    """Return of two ranks of tensor parallelism the new tokens of their last prefill, in one second; None if alike."""
    last = []
    for rank in facts.schedulers:
        new, times = rank.series.get("new_tokens", ()), rank.series.get("time", ())
        at = next((at for at in reversed(range(len(new))) if new[at]), None)
        if at is not None and at == len(new) - 1 and times[at]:
            last.append((times[at][:19], int(new[at]), rank.rank))
    pairs = [(one, other) for one in last for other in last if one[0] == other[0] and one[1] < other[1]]
    if not pairs or len(last) != len(facts.schedulers):
        return None
    one, other = pairs[0]
    return one[1], other[1], (one[2], other[2])
