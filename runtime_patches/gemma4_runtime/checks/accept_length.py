"""Whether drafts are accepted far less than they were, or hardly ever. Pure: numbers in, a fall or nothing out.

| number  | what                                                                                                    |
|---------|---------------------------------------------------------------------------------------------------------|
| RECENT  | the latest verifications, whose mean is held against that of all before them                            |
| BEFORE  | how many of these there have to be                                                                      |
| LEAST   | drafts accepted in a verification before, below which there is nothing to lose                          |
| SHARE   | of what was accepted before, at most which is a fall                                                    |
| SIGMAS  | how far the recent mean has to be below, in its own standard errors: one hard text is not enough        |
| FIRST   | the first verifications of all, which are held against no history: a server may draft wrongly from its  |
|         | very start                                                                                              |
| HARDLY  | drafts that all of these accepted together, at most which is as good as none. Who guesses one token of  |
|         | 20 rightly gets so few once in 60 servers, and one of 10 once in 8000                                   |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import sqrt

RECENT, BEFORE = 32, 64
LEAST, SHARE, SIGMAS = 0.5, 0.4, 6.0
FIRST, HARDLY = 128, 2
_LEAST_DEVIATION = 0.5


@dataclass(frozen=True)
class Fall:
    """Drafts accepted in a verification, on average: before, and in the latest ones.

    Attributes:
        before: The mean before; None where drafts were hardly ever accepted.
        verified_before: Of how many verifications; all there were so far, where they hardly ever were.
        recent: The mean of the latest.
        samples: The latest: (step, request slot, drafts accepted).
    """

    before: float | None
    verified_before: int
    recent: float
    samples: tuple[tuple[int, int, int], ...]


@dataclass
class AcceptHistory:
    """What one server's drafts have come to so far."""

    _recent: deque[tuple[int, int, int]] = field(default_factory=deque)
    _count: int = 0
    _sum: int = 0
    _squares: int = 0
    _looked_at_first: bool = False

    def add(self, samples: Iterable[tuple[int, int, int]]) -> Fall | None:
        """Add verifications, and return the fall if there is one.

        Args:
            samples: (step, request slot, drafts accepted) of each, in their order.
        """
        for sample in samples:
            self._recent.append(sample)
            if len(self._recent) > RECENT:
                accepted = self._recent.popleft()[2]
                self._count += 1
                self._sum += accepted
                self._squares += accepted * accepted
        if not self._looked_at_first and self._count + len(self._recent) >= FIRST:
            self._looked_at_first = True
            accepted = self._sum + sum(one[2] for one in self._recent)
            if accepted <= HARDLY:
                every = self._count + len(self._recent)
                return Fall(None, every, accepted / every, tuple(self._recent))
        if self._count < BEFORE:
            return None
        before, recent = self._sum / self._count, sum(one[2] for one in self._recent) / RECENT
        deviation = max(sqrt(max(self._squares / self._count - before * before, 0.0)), _LEAST_DEVIATION)
        far = (before - recent) * sqrt(RECENT) >= SIGMAS * deviation
        if before < LEAST or recent > SHARE * before or not far:
            return None
        return Fall(before, self._count, recent, tuple(self._recent))
