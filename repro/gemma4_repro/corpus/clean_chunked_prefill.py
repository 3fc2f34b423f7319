"""Nothing is wrong: long prompts in chunks of 32 tokens, beside requests that decode."""

from gemma4_repro.detection.case import CleanCase
from gemma4_repro.staged_workload import at_once
from gemma4_repro.workloads import Workload

CASE = CleanCase(
    id="clean-chunked-prefill",
    title="prompts of 190 tokens in chunks of 64",
    engine={"chunked_prefill_size": 64},
    workload=at_once(
        Workload(prompt_count=2, prompt_tokens=20, shortest_new_tokens=30, longest_new_tokens=40),
        Workload(prompt_count=2, prompt_tokens=190, shortest_new_tokens=10, longest_new_tokens=30, seed=22),
    ),
    shows=("#new-token: 64",),
)
