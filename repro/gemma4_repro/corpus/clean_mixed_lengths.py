"""Nothing is wrong: prompts and answers of very different lengths."""

from gemma4_repro.detection.case import CleanCase
from gemma4_repro.staged_workload import at_once
from gemma4_repro.workloads import Workload

CASE = CleanCase(
    id="clean-mixed-lengths",
    title="prompts of 5 to 190 tokens, answers of 3 to 60",
    workload=at_once(
        Workload(prompt_count=2, prompt_tokens=5, shortest_new_tokens=3, longest_new_tokens=60),
        Workload(prompt_count=2, prompt_tokens=33, shortest_new_tokens=16, longest_new_tokens=40, seed=21),
        Workload(prompt_count=2, prompt_tokens=190, shortest_new_tokens=5, longest_new_tokens=30, seed=22),
    ),
)
