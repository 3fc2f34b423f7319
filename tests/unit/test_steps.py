"""When results of a step are read, and which requests a finding ends, on SGLang's own requests."""

from types import SimpleNamespace

import pytest
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.sampling.sampling_params import SamplingParams

from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.probes import page_table_steps
from gemma4_runtime.steps import defer, fail_requests, step_number

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


def request(name):
    parameters = SamplingParams(max_new_tokens=8)
    parameters.normalize(None)
    return Req(name, "", [5, 6, 7], parameters, vocab_size=512)


@pytest.fixture
def requests():
    return [request(name) for name in "abc"]


class Scheduler:
    """What the hooks read of a Scheduler, and its two methods as SGLang calls them."""

    def __init__(self, ranks=1, stages=1, disaggregation="null"):
        self.forward_ct = 6
        self.server_args = SimpleNamespace(tp_size=ranks, pp_size=stages, disaggregation_mode=disaggregation)

    def run(self, requests, launch, chunked=None, mode=ForwardMode.EXTEND):
        """run_batch, in which `launch` is what the probes do. Returns (batch, result)."""
        batch = SimpleNamespace(reqs=requests, chunked_req=chunked, forward_mode=mode)

        def original(scheduler, batch):
            launch()
            return SimpleNamespace()

        return batch, page_table_steps.around_run_batch(original, self, batch)

    def process(self, batch, result, finish=True):
        def original(scheduler, batch, result):
            for request in batch.reqs if finish else ():
                page_table_steps.before_update_finish_state(request)
                request.output_ids.append(9)
                request.update_finish_state()

        page_table_steps.around_process_batch_result(original, self, batch, result)


def aborted(requests):
    return [one.rid for one in requests if isinstance(one.finished_reason, FINISH_ABORT)]


class TestReading:
    def test_not_before_sglang_decides_which_requests_finish(self, requests):
        read, scheduler = [], Scheduler()
        batch, result = scheduler.run(requests, lambda: defer(lambda: read.append(step_number())))
        assert read == []
        scheduler.process(batch, result)
        assert read == [7]
        assert step_number() is None

    def test_inside_the_step_where_sglang_decides_there(self, requests):
        """V1 speculation: `verify` updates the finish states before run_batch returns."""
        read = []

        def verify():
            defer(lambda: read.append("checked"))
            page_table_steps.before_update_finish_state(requests[0])
            read.append("decided")

        Scheduler().run(requests, verify)
        assert read == ["checked", "decided"]

    def test_a_later_step_that_is_running_already_is_not_read(self, requests):
        read, scheduler = [], Scheduler()
        first = scheduler.run(requests, lambda: defer(lambda: read.append("first")))
        second = scheduler.run(requests, lambda: defer(lambda: read.append("second")))
        scheduler.process(*first)
        assert read == ["first"]
        scheduler.process(*second)
        assert read == ["first", "second"]

    def test_at_the_end_where_no_request_is_asked(self, requests):
        """A chunk of a prefill: no finish state is updated."""
        read, scheduler = [], Scheduler()
        scheduler.process(*scheduler.run(requests, lambda: defer(lambda: read.append(1))), finish=False)
        assert read == [1]

    def test_on_the_way_out_of_a_step_that_raises(self, requests):
        read = []

        def crash():
            defer(lambda: read.append(step_number()))
            raise ValueError("an illegal memory access was encountered")

        with pytest.raises(ValueError, match="illegal memory access"):
            Scheduler().run(requests, crash)
        assert read == [7]

    def test_what_reading_meets_does_not_replace_the_crash(self, requests):
        def crash():
            defer(lambda: fail_requests((0,), "found", None))
            defer(lambda: 1 / 0)
            raise ValueError("an illegal memory access was encountered")

        with pytest.raises(ValueError, match="illegal memory access"):
            Scheduler().run(requests, crash)

    def test_at_once_outside_a_step(self):
        read = []
        defer(lambda: read.append(step_number()))
        assert read == [None]


class TestEnding:
    def end(self, scheduler, requests, rows, chunked=None, mode=ForwardMode.EXTEND):
        launch = lambda: defer(lambda: fail_requests(rows, "page 70 of 65", "dumps/x"))  # noqa: E731
        scheduler.process(*scheduler.run(requests, launch, chunked, mode))

    def test_only_the_rows_concerned(self, requests):
        self.end(Scheduler(), requests, (1,))
        assert aborted(requests) == ["b"]
        reason = requests[1].finished_reason.to_json()
        assert (reason["status_code"], reason["err_type"]) == (500, "ContainedViolation")
        assert "page 70 of 65" in reason["message"]
        assert [one.skip_radix_cache_insert for one in requests] == [False, True, False]

    def test_rows_beyond_the_requests_are_padding(self, requests):
        self.end(Scheduler(), requests, (3, 7))
        assert aborted(requests) == []

    def test_a_request_that_has_ended_is_left_as_it_is(self, requests):
        requests[0].finished_reason = ended = FINISH_ABORT("by its client")
        requests[1].is_retracted = True
        self.end(Scheduler(), requests, (0, 1))
        assert requests[0].finished_reason is ended
        assert requests[1].to_finish is None

    def test_a_prefill_that_goes_on_ends_the_process(self, requests):
        with pytest.raises(TrappedViolation, match="between chunks of its prefill"):
            self.end(Scheduler(), requests, (0, 2), chunked=requests[2])
        assert aborted(requests) == []
        self.end(Scheduler(), requests, (0,), chunked=requests[2])
        assert aborted(requests) == ["a"]

    def test_a_chunk_of_long_ago_is_no_matter(self, requests):
        """A batch of prefills that becomes the running one keeps its chunked_req."""
        self.end(Scheduler(), requests, (2,), chunked=requests[2], mode=ForwardMode.DECODE)
        assert aborted(requests) == ["c"]

    @pytest.mark.parametrize("scheduler", [Scheduler(stages=2), Scheduler(disaggregation="prefill")])
    def test_where_the_result_goes_elsewhere_it_is_read_in_the_step(self, requests, scheduler):
        launch = lambda: defer(lambda: fail_requests((0,), "page 70 of 65", None))  # noqa: E731
        with pytest.raises(TrappedViolation, match="a single request cannot be ended"):
            scheduler.run(requests, launch)
        assert aborted(requests) == []

    def test_several_ranks_end_the_process(self, requests):
        with pytest.raises(TrappedViolation, match="on one of 2 ranks"):
            self.end(Scheduler(ranks=2), requests, (0,))
        assert aborted(requests) == []
