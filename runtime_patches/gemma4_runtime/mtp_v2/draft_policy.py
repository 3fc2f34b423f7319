"""When MTP drafts: by how many requests a step has, and by how many drafts the target takes. Imports no torch.

A step with drafts takes as long as `needed` steps without, and brings a request as many tokens as its verification
accepts, the target's own included. So drafts pay where acceptance is above what is needed, which grows with the batch:

| step        | time of steps without | tokens of a request |
|-------------|-----------------------|---------------------|
| with drafts | needed(requests)      | accepted            |
| without     | 1                     | 1                   |

Acceptance is measured while drafts are made, over all requests, as a mean that forgets. Drafts are dropped below
`needed` less 2% and taken up above it plus 2%, so whatever lies between costs 2% at most, and noise does not switch
back and forth. While they are dropped, single steps draft all the same, to hear of answers that have become easier to
guess: as rarely as it takes to lose no more than half a percent by it.

A step costs nothing to switch: the KV cache is the target's, and each step leaves what the next draft starts from.
Nothing here depends on a clock, so that tensor parallel ranks decide alike.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

BAND = 0.02
"""How far acceptance has to be from what is needed before anything changes."""
MEMORY, _MEMORY_STEPS = 256, 32
"""Verifications of a request, and of many requests steps, after which the mean has forgotten two thirds."""
_MEMORY_DROPPED, _MEMORY_STEPS_DROPPED = 64, 4
"""Likewise while drafts are dropped, when few are made."""
_PRIOR = 16
"""Verifications that the first guess weighs as much as."""
_PROBE_SHARE = 0.005
_PROBE_VERIFICATIONS, _LONGEST_PROBE, _SHORTEST_WAIT = 32, 16, 64

_MEASURED_DRAFTS = 3


@dataclass(frozen=True)
class NeededTable:
    """How many tokens a verification has to bring, by requests in a step.

    Attributes:
        rows: (requests, tokens), by requests. Between two rows it is linear; outside, it is the nearest row's.
        source: Where they are from, for people.
    """

    rows: tuple[tuple[int, float], ...]
    source: str

    def at(self, requests: int) -> float:
        """Return the tokens per verification that a step of so many requests needs."""
        sizes = [size for size, _ in self.rows]
        place = bisect_left(sizes, requests)
        if place == len(sizes):
            return self.rows[-1][1]
        if place == 0 or sizes[place] == requests:
            return self.rows[place][1]
        (low, below), (high, above) = self.rows[place - 1 : place + 1]
        return below + (above - below) * (requests - low) / (high - low)

    def for_drafts(self, drafts: int) -> NeededTable:
        """Return it for steps of so many draft tokens: what is on top of a step without grows with them."""
        if drafts == _MEASURED_DRAFTS:
            return self
        rows = tuple((size, 1 + (needed - 1) * drafts / _MEASURED_DRAFTS) for size, needed in self.rows)
        return NeededTable(rows, f"{self.source}, measured with {_MEASURED_DRAFTS} drafts and scaled to {drafts}")


_E2B = ((1, 2.55), (2, 2.37), (4, 2.41), (8, 2.5), (16, 2.43), (32, 2.67), (64, 4.02), (128, 6.36))
_E4B = ((1, 2.12), (2, 1.96), (4, 2.03), (8, 2.13), (16, 2.09), (32, 2.36), (64, 3.38), (128, 5.21))
_26B = ((1, 2.08), (2, 1.9), (4, 1.65), (8, 1.44), (16, 1.4), (32, 1.53), (64, 1.98), (128, 3.23))
# By hidden size and layers of the target's text model.
MEASURED: dict[tuple[int, int], NeededTable] = {
    (1536, 35): NeededTable(_E2B, "E2B on an H200, docs/bench/mtp_batches_h200_2026-11-25_e2b.json"),
    (2560, 42): NeededTable(_E4B, "E4B on an H200, docs/bench/mtp_batches_h200_2026-11-25_e4b.json"),
    (2816, 30): NeededTable(_26B, "26B on an H200, docs/bench/mtp_batches_h200_2026-11-26_26b.json"),
}


@dataclass(frozen=True)
class Verified:
    """What a step with drafts came to: requests that were verified, and their tokens, the target's own included."""

    requests: int
    tokens: int


class DraftPolicy:
    """Decides step by step, and remembers what drafts came to.

    Args:
        table: What is needed; None drafts in every step.
        longest: Tokens of a verification of which every draft is taken.
        told: What a person asked for, for `document`.
    """

    def __init__(self, table: NeededTable | None, longest: int, told: str) -> None:
        self._table, self._longest, self._told = table, longest, told
        self.accepted = 1 + (longest - 1) / 2
        self._weight = float(_PRIOR)
        self._unheard = _PROBE_VERIFICATIONS
        self.drafting = True
        self._since_probe = self._probe_left = 0
        self._requests = self._steps_with = self._steps_without = self._probes = self._switches = 0

    @property
    def may_drop(self) -> bool:
        """Whether there can be steps without drafts at all."""
        return self._table is not None

    def decide(self, requests: int) -> bool:
        """Return whether the step of so many requests that comes next is to draft, and count it."""
        self._requests = requests
        draft = self._table is None or self._weigh(requests, self._table.at(requests))
        if draft:
            self._steps_with += 1
        else:
            self._steps_without += 1
        return draft

    def _weigh(self, requests: int, needed: float) -> bool:
        bound = needed * (1 - BAND) if self.drafting else needed * (1 + BAND)
        # At first acceptance is a guess.
        untried = self._unheard > 0 and needed < self._longest
        wanted = untried or self.accepted > bound
        if wanted != self.drafting:
            self.drafting = wanted
            self._switches += 1
            self._since_probe = self._probe_left = 0
            self._weight = min(self._weight, self._memory(requests))
        return self.drafting or self._probes_now(requests, needed)

    def _probes_now(self, requests: int, needed: float) -> bool:
        if self._probe_left:
            self._probe_left -= 1
            return True
        if needed >= self._longest:
            # Not even drafts that are all taken would pay.
            return False
        self._since_probe += 1
        steps = min(math.ceil(_PROBE_VERIFICATIONS / requests), _LONGEST_PROBE)
        lost = max(needed - self.accepted, 0) / _PROBE_SHARE - needed
        if self._since_probe <= max(steps * lost, _SHORTEST_WAIT):
            return False
        self._since_probe, self._probe_left = 0, steps - 1
        self._probes += 1
        return True

    def observe(self, verified: Verified) -> None:
        """Take in what a step with drafts came to, a step late where steps overlap."""
        if not verified.requests:
            return
        self._unheard -= verified.requests
        self._weight = min(self._weight + verified.requests, self._memory(verified.requests))
        share = min(1.0, verified.requests / self._weight)
        self.accepted += share * (verified.tokens / verified.requests - self.accepted)

    def _memory(self, requests: int) -> int:
        if self.drafting:
            return max(MEMORY, _MEMORY_STEPS * requests)
        return max(_MEMORY_DROPPED, _MEMORY_STEPS_DROPPED * requests)

    def document(self) -> dict[str, Any]:
        """Return its state, for /server_info."""
        table = self._table
        return {
            "asked": self._told,
            "table": None if table is None else {str(size): _told(needed) for size, needed in table.rows},
            "source": "no table: drafts in every step" if table is None else table.source,
            "drafting": self.drafting,
            "requests": self._requests,
            "accepted": round(self.accepted, 3),
            "needed": _told(table.at(self._requests)) if table and self._requests else None,
            "steps_with_drafts": self._steps_with,
            "steps_without": self._steps_without,
            "probes": self._probes,
            "switches": self._switches,
        }


def _told(needed: float) -> float | None:
    """Return what JSON can hold of it."""
    return round(needed, 3) if math.isfinite(needed) else None


ALWAYS, NEVER, AUTO = "always", "never", "auto"


def policy_of(asked: str | Sequence[tuple[int, float]], model: tuple[int, int], nodes: int) -> DraftPolicy:
    """Return the policy of a server.

    Args:
        asked: `auto`, `always`, `never`, or rows of a table.
        model: Hidden size and layers of the target's text model.
        nodes: Tokens of a verification, the target's own included.
    """
    if asked == AUTO:
        found = MEASURED.get(model)
        return DraftPolicy(found and found.for_drafts(nodes - 1), nodes, AUTO)
    if asked == ALWAYS:
        return DraftPolicy(None, nodes, ALWAYS)
    if asked == NEVER:
        return DraftPolicy(NeededTable(((1, math.inf),), "drafts in no step"), nodes, NEVER)
    rows = tuple((int(size), float(needed)) for size, needed in asked)
    return DraftPolicy(NeededTable(rows, "given"), nodes, ",".join(f"{size}:{needed:g}" for size, needed in rows))
