"""Nothing is wrong: more requests than the pools hold, so that some are retracted and start again."""

from gemma4_repro.detection.case import CleanCase
from gemma4_repro.staged_workload import at_once
from gemma4_repro.workloads import Workload

CASE = CleanCase(
    id="clean-retraction",
    title="pools so small that requests are retracted",
    engine={"max_total_tokens": 640, "swa_full_tokens_ratio": 0.8, "schedule_conservativeness": 0.1},
    workload=at_once(Workload(prompt_count=6, prompt_tokens=60, shortest_new_tokens=60, longest_new_tokens=100)),
    shows=("Retract requests",),
)
