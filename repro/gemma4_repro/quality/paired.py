"""Statistics of two sides that answered the same items, each right or wrong. Pure.

The interval of the difference is Tango's score interval for paired proportions (Statistics in Medicine 17, 1998,
891-908). It holds its level at small counts and has a width where not one pair differs, which the interval that is
conditional on the pairs that differ has not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

LEVEL = 0.95
_Z = 1.959963984540054
"""The standard normal's 97.5% quantile: an interval of LEVEL, two-sided."""


@dataclass(frozen=True)
class Pairs:
    """How many items both sides, only one of them, and neither answered right."""

    both: int
    only_base: int
    only_with: int
    neither: int

    @property
    def count(self) -> int:
        """All items that both sides answered."""
        return self.both + self.only_base + self.only_with + self.neither

    @property
    def difference(self) -> float:
        """The share of right answers of `with` minus that of `base`."""
        return (self.only_with - self.only_base) / self.count


def interval(pairs: Pairs) -> tuple[float, float]:
    """Return the ends of the difference's 95% interval, with minus base. There has to be at least one pair."""
    # Comes with SGLang; the base install does without.
    from scipy.optimize import brentq

    def end(z: float, outermost: float) -> float:
        def excess(difference: float) -> float:
            return _score(pairs, difference) - z

        # The statistic falls from the lowest to the highest difference; at the outermost it may be undefined.
        near = math.copysign(1 - 1e-12, outermost)
        low, high = sorted((pairs.difference, near))
        if low >= high or excess(low) * excess(high) > 0:
            return outermost
        return float(cast(float, brentq(excess, low, high, xtol=1e-12)))

    return end(_Z, -1.0), end(-_Z, 1.0)


def _score(pairs: Pairs, difference: float) -> float:
    """Tango's statistic: how many standard errors the observed difference lies above a supposed one."""
    count, gained, lost = pairs.count, pairs.only_with, pairs.only_base
    # The probability of a loss that fits best among those that go with the supposed difference.
    linear = (2 * count - gained + lost) * difference - gained - lost
    constant = -lost * difference * (1 - difference)
    fitted = (math.sqrt(max(linear**2 - 8 * count * constant, 0.0)) - linear) / (4 * count)
    variance = count * (2 * fitted + difference * (1 - difference))
    distance = gained - lost - count * difference
    if variance <= 0:
        return math.copysign(math.inf, distance) if distance else 0.0
    return distance / math.sqrt(variance)


def mcnemar_p(pairs: Pairs) -> float:
    """Return McNemar's exact two-sided p-value: of so uneven a split of the pairs that differ, were it a coin's."""
    from scipy.stats import binomtest

    differing = pairs.only_base + pairs.only_with
    return float(binomtest(pairs.only_with, differing).pvalue) if differing else 1.0


def beats_guessing(right: int, count: int, guess: float) -> bool:
    """Say whether so many right answers are more than guessing gives, by a one-sided binomial test at 5%."""
    from scipy.stats import binomtest

    return bool(count) and float(binomtest(right, count, guess, alternative="greater").pvalue) < 1 - LEVEL
