"""What is measured and in which order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from gemma4_repro.bench.arms import BenchArm


@dataclass(frozen=True)
class Plan:
    """mtp: with which settings of MTP, one after the other. limit_s: for everything, starts included.
    short_tokens: generated instead of new_tokens by a burst that is not counted, or whose arm is slow."""

    arms: tuple[BenchArm, ...]
    batches: tuple[int, ...]
    mtp: tuple[bool, ...]
    rounds: int
    host_engine: bool
    limit_s: float
    prompt_tokens: int
    new_tokens: int
    short_tokens: int
    seed: int = 0


# The prompt is longer than the model's window, so that the sliding layers' pages move.
CUDA_SIZES = {"prompt_tokens": 576, "new_tokens": 144, "short_tokens": 64}
HOST_SIZES = {"prompt_tokens": 60, "new_tokens": 60, "short_tokens": 60}


def schedule(plan: Plan, arms: tuple[str, ...], round_number: int) -> Iterator[tuple[int, str]]:
    """(batch, arm) of one round: per batch all arms in an order drawn anew, so that no arm always follows the same one.

    Arms of one batch lie next to each other in time: what is compared has met the same clocks and temperature.
    """
    draw = random.Random(plan.seed * 1_000_003 + round_number)
    for batch in plan.batches:
        yield from ((batch, arm) for arm in draw.sample(arms, len(arms)))
