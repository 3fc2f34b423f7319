"""Loads in stages: the requests of a stage run together, the next stage starts when all have ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gemma4_repro.workloads import SWA_PRESSURE, Workload


@dataclass(frozen=True)
class StagedWorkload:
    """stages: the loads of each stage, sent at once. aborted: prompt number -> aborted after so many output tokens.

    Prompts are numbered through all stages. Two loads of one seed and length have the same prompts: the second finds
    them in the prefix cache.
    """

    stages: tuple[tuple[Workload, ...], ...]
    aborted: Mapping[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "aborted", MappingProxyType(dict(self.aborted)))
        if not self.stages or not all(self.stages):
            raise ValueError("a staged workload needs a stage, and each stage a load")
        count = len(self.prompts())
        if strangers := [prompt for prompt in self.aborted if not 0 <= prompt < count]:
            raise ValueError(f"there is no prompt {strangers} to abort, only 0 to {count - 1}")

    def prompts(self) -> list[list[int]]:
        """Token ids, [prompts][tokens]."""
        return [prompt for stage in self.stages for load in stage for prompt in load.prompts()]

    def new_tokens(self) -> list[int | None]:
        """Say how many tokens each prompt is continued for, unless it is aborted; None: to the context's end."""
        return [count for stage in self.stages for load in stage for count in load.new_tokens()]

    def stage_of(self) -> list[int]:
        """Return the number of each prompt's stage."""
        return [number for number, stage in enumerate(self.stages) for load in stage for _ in range(load.prompt_count)]


def at_once(*loads: Workload) -> StagedWorkload:
    """Return one stage."""
    return StagedWorkload((loads,))


# Loads of a few seconds that several cases of the corpus share.
BRIEF = at_once(Workload(prompt_count=2, prompt_tokens=60, shortest_new_tokens=24, longest_new_tokens=40))
"""Two requests, long enough for a dozen rounds with MTP."""

PAST_THE_WINDOW = at_once(Workload(prompt_count=2, prompt_tokens=60, shortest_new_tokens=110, longest_new_tokens=120))
"""Two requests that leave the toys' window of 32 tokens so far behind that SWA pages are given back while they run."""

UNDER_PRESSURE = at_once(SWA_PRESSURE)
"""Eight requests that nearly fill the SWA pool, until full-pool page ids lie beyond its end."""
