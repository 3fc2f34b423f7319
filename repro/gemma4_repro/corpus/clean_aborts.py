"""Nothing is wrong: two of five requests are aborted while they run, and the pools are used again."""

from gemma4_repro.detection.case import CleanCase
from gemma4_repro.staged_workload import StagedWorkload
from gemma4_repro.workloads import Workload

CASE = CleanCase(
    id="clean-aborts",
    title="two of five requests are aborted while they run",
    workload=StagedWorkload(
        (
            (Workload(prompt_count=5, prompt_tokens=60, shortest_new_tokens=60, longest_new_tokens=60),),
            (Workload(prompt_count=2, prompt_tokens=60, shortest_new_tokens=10, longest_new_tokens=10, seed=21),),
        ),
        aborted={1: 12, 3: 25},
    ),
)
