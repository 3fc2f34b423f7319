"""A staged workload's prompts come in stages, in order."""

import pytest

from gemma4_repro.staged_workload import StagedWorkload, at_once
from gemma4_repro.workloads import OpenWorkload, Workload

ONE = Workload(prompt_count=2, prompt_tokens=5, shortest_new_tokens=3, longest_new_tokens=4)
OTHER = Workload(prompt_count=1, prompt_tokens=9, shortest_new_tokens=7, longest_new_tokens=7)


def test_prompts_are_numbered_through_all_stages():
    load = StagedWorkload(((ONE, OTHER), (ONE,)), aborted={2: 4})
    assert [len(prompt) for prompt in load.prompts()] == [5, 5, 9, 5, 5]
    assert load.new_tokens() == [3, 4, 7, 3, 4]
    assert load.stage_of() == [0, 0, 0, 1, 1]
    assert load.prompts()[:2] == load.prompts()[3:]


def test_open_answers_have_no_number():
    open_ended = OpenWorkload(prompt_count=2, prompt_tokens=5)
    assert at_once(open_ended, ONE).new_tokens() == [None, None, 3, 4]
    assert open_ended.prompts() == ONE.prompts()


def test_at_once_is_one_stage():
    assert at_once(ONE, OTHER).stage_of() == [0, 0, 0]


@pytest.mark.parametrize(("stages", "aborted"), [((), {}), (((),), {}), (((ONE,),), {2: 1})])
def test_impossible_loads_are_refused(stages, aborted):
    with pytest.raises(ValueError, match=r"needs a stage|no prompt"):
        StagedWorkload(stages, aborted)
