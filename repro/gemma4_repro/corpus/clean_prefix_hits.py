"""Nothing is wrong: the second and third stage find their prompts in the prefix cache."""

from gemma4_repro.detection.case import CleanCase
from gemma4_repro.staged_workload import StagedWorkload
from gemma4_repro.workloads import Workload

_PROMPTS = Workload(prompt_count=3, prompt_tokens=101, shortest_new_tokens=12, longest_new_tokens=40)

CASE = CleanCase(
    id="clean-prefix-hits",
    title="three prompts, sent three times",
    workload=StagedWorkload(((_PROMPTS,), (_PROMPTS,), (_PROMPTS,))),
    shows=("#cached-token: 288",),
)
