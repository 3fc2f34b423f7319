"""Probe request-rows on where requests are: who runs does not wait, nobody is lost, no batch keeps another's mode."""

from types import SimpleNamespace

import pytest
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from gemma4_dumps.store import DumpStore
from gemma4_runtime.probes import request_rows
from gemma4_runtime.release.requests import held
from gemma4_triage.finding import Confidence
from request_rows_server import Server, named, trapped_by

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture
def server(attach, monkeypatch):
    return Server(monkeypatch, attach("trap", "request-rows", "host-alloc-kernels"))


def chosen(server, batch, running=None):
    """Choose a batch of these requests, with these running beside it; a plan has both."""
    batches = [None if some is None else SimpleNamespace(reqs=some) for some in (batch, running)]
    plan = SimpleNamespace(batch_to_run=batches[0], running_batch=batches[1])
    request_rows.after_next_batch(plan, server.scheduler)


def retract(server, request):
    """Give back what a request has, as a retraction does."""
    held(request).req_pool_idx = None
    request.is_retracted = True
    return [one for one in server.world.requests if one is not request]


def silent(server):
    return list(DumpStore(server.dumps).list()) == []


class TestWhoRunsAndWaits:
    def test_one_that_ran_is_put_into_the_queue(self, server):
        server.next_batch()
        server.scheduler.waiting_queue = [server.world.requests[1]]
        said = trapped_by(server, lambda: chosen(server, server.world.requests))
        assert (said.verdict, said.scalars["why"]) == ("request_misplaced", "waits too")
        assert said.scalars["request_slot"] == held(server.world.requests[1]).req_pool_idx
        finding = named(server)
        assert (finding.rule, finding.confidence) == ("request-misplaced", Confidence.CERTAIN)
        assert "It ran before and was put there" in finding.cause

    def test_one_that_was_admitted_stays_in_the_queue(self, server):
        server.scheduler.waiting_queue = [server.world.requests[1]]
        trapped_by(server, lambda: chosen(server, server.world.requests))
        assert "was admitted in this step" in named(server).cause

    def test_one_whose_prompt_is_read_in_chunks(self, server):
        server.scheduler.chunked_req = server.world.requests[0]
        server.scheduler.waiting_queue = [server.world.requests[0]]
        said = trapped_by(server, lambda: chosen(server, None))
        assert said.scalars["in_chunks"] is True

    def test_between_steps(self, server):
        server.scheduler.waiting_queue = [server.world.requests[2]]
        assert trapped_by(server, server.next_batch).verdict == "request_misplaced"

    def test_one_that_was_retracted_waits(self, server):
        server.next_batch()
        request = server.world.requests[1]
        others = retract(server, request)
        server.scheduler.waiting_queue = [request]
        chosen(server, others, others)
        assert silent(server)


class TestWhoIsNowhere:
    def test_one_that_was_retracted(self, server):
        server.next_batch()
        others = retract(server, server.world.requests[1])
        said = trapped_by(server, lambda: chosen(server, others, others))
        assert (said.scalars["why"], said.scalars["request_slot"]) == ("in no queue", None)
        finding = named(server)
        assert (finding.rule, finding.confidence) == ("request-misplaced", Confidence.LIKELY)
        assert "was retracted, with its row given back, and is neither" in finding.cause

    def test_one_that_runs_on(self, server):
        server.next_batch()
        slot = held(server.world.requests[2]).req_pool_idx
        said = trapped_by(server, lambda: chosen(server, server.world.requests[:2]))
        assert said.scalars["request_slot"] == slot
        assert f"The request in slot {slot} ran, has not ended" in named(server).cause

    def test_running_beside_a_prefill_and_in_chunks_is_somewhere(self, server):
        server.next_batch()
        server.scheduler.chunked_req = server.world.requests[2]
        chosen(server, server.world.requests[:1], server.world.requests[1:2])
        assert silent(server)

    @pytest.mark.parametrize("how", ["ended", "to end", "ahead of its result", "elsewhere", "of a search"])
    def test_one_that_ends_or_is_held_elsewhere(self, server, monkeypatch, how):
        server.next_batch()
        request = server.world.requests[2]
        match how:
            case "ended":
                monkeypatch.setattr(request, "finished", lambda: True)
            case "to end":
                request.to_finish = "aborted"
            case "ahead of its result":
                server.scheduler.result_queue = [(SimpleNamespace(reqs=[request]), None)]
            case "elsewhere":
                server.scheduler.disaggregation_mode = SimpleNamespace(value="decode")
            case "of a search":
                request.beam_group = object()
        chosen(server, server.world.requests[:2])
        assert silent(server)

    def test_one_that_was_retracted_is_not_awaited_from_its_result(self, server):
        server.next_batch()
        request = server.world.requests[2]
        server.scheduler.result_queue = [(SimpleNamespace(reqs=[request]), None)]
        others = retract(server, request)
        assert trapped_by(server, lambda: chosen(server, others)).scalars["retracted"] is True

    def test_a_release_without_plans(self, server):
        server.next_batch()
        request_rows.after_next_batch(SimpleNamespace(reqs=server.world.requests), server.scheduler)
        request_rows.after_next_batch(None, server.scheduler)
        assert silent(server)


class TestModes:
    def run(self, server, before, after):
        batch = SimpleNamespace(reqs=server.world.requests, forward_mode=before)
        request_rows.before_run_batch(server.scheduler, batch)
        batch.forward_mode = after
        request_rows.after_run_batch(SimpleNamespace(next_token_ids=None), server.scheduler, batch)

    def test_a_verification_is_left_at_a_decode(self, server):
        said = trapped_by(server, lambda: self.run(server, ForwardMode.DECODE, ForwardMode.TARGET_VERIFY))
        assert (said.verdict, said.scalars["ran_as"], said.scalars["left_as"]) == (
            "mode_left",
            "DECODE",
            "TARGET_VERIFY",
        )
        finding = named(server)
        assert (finding.rule, finding.confidence) == ("forward-mode-left-over", Confidence.CERTAIN)
        assert "taken for a prefill's" in finding.cause

    def test_of_another_kind_that_is_not_said(self, server):
        trapped_by(server, lambda: self.run(server, ForwardMode.EXTEND, ForwardMode.DECODE))
        assert "taken for a prefill's" not in named(server).cause

    @pytest.mark.parametrize(
        "modes", [(ForwardMode.DECODE,) * 2, (ForwardMode.IDLE, ForwardMode.DECODE), (None, ForwardMode.DECODE)]
    )
    def test_silent_where_it_is_taken_back_and_where_nothing_ran(self, server, modes):
        self.run(server, *modes)
        assert silent(server)


class TestReadAgain:
    @pytest.fixture
    def prefilled(self, server):
        """Return a server that has read its prompts."""
        server.forward(mode=ForwardMode.EXTEND)
        return server

    def again(self, server, change=lambda made: None):
        return trapped_by(server, lambda: server.forward(change, ForwardMode.EXTEND))

    def test_a_chunk_that_begins_before_the_last_one_ended(self, prefilled):
        said = self.again(prefilled)
        assert (said.verdict, said.scalars["why"], said.scalars["value"], said.scalars["expected"]) == (
            *("length_differs", "again"),
            *(32, 40),
        )
        cause = named(prefilled).cause
        assert "begins at token 32 of the request" in cause
        assert "to whole pages" in cause

    def test_whose_prefix_it_is_goes_by_the_request(self, prefilled, monkeypatch):
        monkeypatch.setattr("gemma4_runtime.rows.begins.prefix_length", lambda _: 32)
        assert self.again(prefilled).scalars["structure"] == "request counters"
        finding = named(prefilled)
        assert (finding.structure, finding.confidence) == ("request counters", Confidence.CERTAIN)
        assert "asked of the prefix cache again between two chunks" in finding.cause

    def test_a_request_that_was_retracted_is_read_again(self, prefilled):
        prefilled.begin_anew()
        prefilled.forward(mode=ForwardMode.EXTEND)
        assert silent(prefilled)

    def test_another_request_of_that_name(self, prefilled):
        prefilled.scheduler.running_batch = SimpleNamespace(reqs=[])
        request_rows.before_next_batch(prefilled.scheduler)
        prefilled.next_batch = lambda: None
        prefilled.forward(mode=ForwardMode.EXTEND)
        assert silent(prefilled)
