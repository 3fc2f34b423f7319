"""The ids of an arm's prompts, held against SGLang's own way of finding what to abort."""

from types import SimpleNamespace

import pytest
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers.io_struct import AbortReq
from sglang.srt.managers.scheduler import Scheduler

from gemma4_repro.engine.serving import prompt_of, request_id

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

PROMPTS = range(120)


def aborted_by_sglang(named: str, ids: list[str]) -> list[str]:
    """Return the ids of running requests that the scheduler ends when `named` is to be aborted."""
    running = [SimpleNamespace(rid=rid, to_finish=None, finished=lambda: False) for rid in ids]
    scheduler = SimpleNamespace(
        waiting_queue=[],
        grammar_manager=SimpleNamespace(abort_requests=lambda order: None),
        disaggregation_mode=DisaggregationMode.NULL,
        running_batch=SimpleNamespace(reqs=running),
        cur_batch=None,
        chunked_req=None,
        mm_receiver=None,
        dllm_config=None,
        collect_inflight_reqs=lambda: running,
    )
    Scheduler.abort_request(scheduler, AbortReq(rid=named))
    return [request.rid for request in running if request.to_finish is not None]


@pytest.mark.parametrize("prompt", [0, 1, 10, 11, 119])
def test_sglang_aborts_the_prompt_that_is_named_and_no_other(prompt):
    ids = [request_id(number) for number in PROMPTS]
    assert aborted_by_sglang(request_id(prompt), ids) == [request_id(prompt)]


def test_it_would_take_others_along_under_ids_of_different_widths():
    """If this fails, SGLang compares whole ids, and any ids will do."""
    assert aborted_by_sglang("prompt-1", ["prompt-1", "prompt-2", "prompt-10"]) == ["prompt-1", "prompt-10"]


def test_an_id_tells_its_prompt_and_so_do_those_of_earlier_versions():
    assert [prompt_of(request_id(number)) for number in PROMPTS] == list(PROMPTS)
    assert [prompt_of(f"prompt-{number}") for number in PROMPTS] == list(PROMPTS)


@pytest.mark.parametrize("prompt", [-1, 1_000_000])
def test_a_number_that_does_not_fit_is_refused(prompt):
    with pytest.raises(ValueError, match="numbered from 0 to 999999"):
        request_id(prompt)
