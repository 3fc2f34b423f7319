"""Processor time of works beside each other: a bound that holds on any machine is a ratio."""

import resource
from collections.abc import Callable

MOST_TURNS = 12


def spent_s() -> float:
    """Return the processor time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def holds(bound: Callable[..., bool], *works: Callable[[], object]) -> bool:
    """Say whether the least time of each work, of up to MOST_TURNS turns, is within a bound.

    Machines differ, and one by the minute, because what else runs there takes caches and turns away: each only makes a
    time longer. So the first turns after which the bound holds show that it does, and it is broken if none do.
    """
    least = [float("inf")] * len(works)
    for _ in range(MOST_TURNS):
        for number, work in enumerate(works):
            begin_s = spent_s()
            work()
            least[number] = min(least[number], spent_s() - begin_s)
        if bound(*least):
            return True
    print(f"{MOST_TURNS} turns, least times in s: {least}")
    return False
