"""Loads in which nothing is wrong: every probe must stay silent."""

from __future__ import annotations

from gemma4_repro.corpus.case import CleanCase
from gemma4_repro.staged_workload import UNDER_PRESSURE, StagedWorkload, at_once
from gemma4_repro.workloads import Workload
from gemma4_runtime.releases import BASE, installed_or_base

_THREE_PROMPTS = Workload(prompt_count=3, prompt_tokens=101, shortest_new_tokens=12, longest_new_tokens=40)


CLEAN: tuple[CleanCase, ...] = (
    CleanCase(
        id="clean-mixed-lengths",
        title="prompts of 5 to 190 tokens, answers of 3 to 60",
        workload=at_once(
            Workload(prompt_count=2, prompt_tokens=5, shortest_new_tokens=3, longest_new_tokens=60),
            Workload(prompt_count=2, prompt_tokens=33, shortest_new_tokens=16, longest_new_tokens=40, seed=21),
            Workload(prompt_count=2, prompt_tokens=190, shortest_new_tokens=5, longest_new_tokens=30, seed=22),
        ),
    ),
    CleanCase(
        id="clean-retraction",
        title="pools so small that requests are retracted",
        engine={"max_total_tokens": 640, "swa_full_tokens_ratio": 0.8, "schedule_conservativeness": 0.1},
        workload=at_once(Workload(prompt_count=6, prompt_tokens=60, shortest_new_tokens=60, longest_new_tokens=100)),
        # 0.5.23 reserves the whole answer of a request that ignores the end token, and so retracts none.
        ignore_eos=installed_or_base() == BASE,
        shows=("Retract requests",),
    ),
    CleanCase(
        id="clean-aborts",
        title="two of five requests are aborted while they run",
        workload=StagedWorkload(
            (
                (Workload(prompt_count=5, prompt_tokens=60, shortest_new_tokens=60, longest_new_tokens=60),),
                (Workload(prompt_count=2, prompt_tokens=60, shortest_new_tokens=10, longest_new_tokens=10, seed=21),),
            ),
            aborted={1: 12, 3: 25},
        ),
    ),
    CleanCase(
        id="clean-prefix-hits",
        title="three prompts, sent three times",
        workload=StagedWorkload(((_THREE_PROMPTS,), (_THREE_PROMPTS,), (_THREE_PROMPTS,))),
        shows=("#cached-token: 288",),
    ),
    CleanCase(
        id="clean-chunked-prefill",
        title="prompts of 190 tokens in chunks of 64",
        engine={"chunked_prefill_size": 64},
        workload=at_once(
            Workload(prompt_count=2, prompt_tokens=20, shortest_new_tokens=30, longest_new_tokens=40),
            Workload(prompt_count=2, prompt_tokens=190, shortest_new_tokens=10, longest_new_tokens=30, seed=22),
        ),
        shows=("#new-token: 64",),
    ),
    CleanCase(id="clean-swa-pressure", title="eight requests that nearly fill the SWA pool", workload=UNDER_PRESSURE),
)
