"""Probe request-rows on a batch's lists, on a prefill's span before its slots, and on what a step gives."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from gemma4_dumps.structures import Structure
from gemma4_runtime.probes import request_rows
from gemma4_runtime.release.requests import held, prefix_length, set_swa_evicted, stay_of
from gemma4_runtime.rows.seen import seen_of
from gemma4_triage.finding import Confidence
from request_rows_server import Server, named, trapped, trapped_by

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture
def server(attach, monkeypatch):
    return Server(monkeypatch, attach("trap", "request-rows", "host-alloc-kernels"))


def batch_of(server, requests=None, **lists):
    requests = server.world.requests if requests is None else requests
    rows = torch.tensor([held(one).req_pool_idx for one in requests])
    lengths = torch.tensor([held(one).kv_committed_len for one in requests])
    given = {"req_pool_indices": rows, "seq_lens": lengths, "seq_lens_cpu": lengths.clone()} | lists
    return SimpleNamespace(reqs=list(requests), **given)


class TestSizes:
    def test_a_list_that_was_not_filtered_is_named(self, server):
        server.forward()
        lengths = torch.tensor([held(one).kv_committed_len for one in server.world.requests])
        left = batch_of(server, server.world.requests[:2], seq_lens_cpu=lengths)
        said = trapped_by(server, lambda: request_rows.after_filter(None, left))
        assert (said.verdict, said.scalars["lists"], said.scalars["value"]) == ("length_differs", "seq_lens_cpu", 3)
        finding = named(server)
        assert (finding.structure, finding.confidence) == (Structure.BATCH_LENGTHS, Confidence.CERTAIN)
        assert "seq_lens_cpu has 3 entries, and the batch has 2 requests" in finding.cause

    def test_of_row_numbers_and_of_what_is_sampled_by(self, server):
        server.forward()
        rows = torch.tensor([held(one).req_pool_idx for one in server.world.requests])
        few = batch_of(server, req_pool_indices=rows[:2])
        said = trapped_by(server, lambda: request_rows.after_batch_changes(None, few))
        assert (said.verdict, said.scalars["structure"], said.scalars["defect"]) == ("row_index", "row indices", "lost")

    def test_before_a_forward_what_is_sampled_by_is_looked_at_too(self, server):
        server.forward()
        more = batch_of(server, sampling_info=SimpleNamespace(temperatures=torch.ones(4, 1)), forward_mode=None)
        said = trapped_by(server, lambda: request_rows.before_run_batch(server.scheduler, more))
        assert (said.scalars["lists"], said.scalars["structure"]) == ("temperatures", "sampling parameters")
        assert named(server).structure is None

    def test_a_batch_without_requests_keeps_its_lists(self, server):
        server.forward()
        gone = batch_of(server, [], req_pool_indices=torch.tensor([3]), seq_lens_cpu=torch.tensor([9, 9]))
        request_rows.after_filter(None, gone)


class TestSpans:
    def prefill(self, server, begin, size, request=None):
        request = server.world.requests[0] if request is None else request
        batch = SimpleNamespace(
            reqs=[request], prefix_lens=[begin], extend_lens=[size], forward_mode=ForwardMode.EXTEND
        )
        request_rows.before_alloc_for_extend(batch)

    def test_one_that_passes_tokens_over(self, server):
        server.next_batch()
        request = server.world.requests[0]
        end = held(request).kv_allocated_len
        request.origin_input_ids.extend(range(64))
        self.prefill(server, end, 16)
        said = trapped_by(server, lambda: self.prefill(server, end + 16, 16))
        assert (said.scalars["why"], said.scalars["value"], said.scalars["expected"]) == ("passed over", end + 16, end)
        assert said.scalars["request_slot"] == held(request).req_pool_idx
        finding = named(server)
        assert (finding.structure, finding.confidence) == (Structure.BATCH_LENGTHS, Confidence.CERTAIN)
        assert "never computed" in finding.cause
        assert prefix_length(request) != end + 16

    def test_one_that_ends_behind_its_text(self, server):
        server.next_batch()
        request = server.world.requests[0]
        end = held(request).kv_allocated_len
        said = trapped_by(server, lambda: self.prefill(server, end, 5))
        assert (said.scalars["why"], said.scalars["value"]) == ("behind its text", end + 5)
        assert "its prompt and answer have" in named(server).cause


def test_what_left_a_window_before_it_had_slots(server):
    request = server.world.requests[1]
    server.next_batch()

    def count(made):
        set_swa_evicted(request, int(made.extend_prefix_lens_cpu[1]) + server.world.page)

    request.retraction_count += 1
    said = trapped(server, count, ForwardMode.EXTEND)
    assert (said.verdict, said.scalars["why"], said.scalars["defect"]) == ("counter_wrong", "gone ahead", "stale")
    finding = named(server)
    assert (finding.structure, finding.confidence) == (Structure.REQUEST_COUNTERS, Confidence.CERTAIN)
    assert "It was retracted" in finding.cause


@pytest.mark.parametrize("changes", [False, True])
def test_a_step_gives_as_many_tokens_as_its_verification_took(server, changes):
    server.forward()
    requests, took = server.world.requests, [1, 3, 2]
    batch = SimpleNamespace(reqs=requests, forward_mode=ForwardMode.DECODE)
    request_rows.before_run_batch(server.scheduler, batch)
    seen_of(server.scheduler).accepted = ([stay_of(one) for one in requests], list(took), True)
    given = torch.tensor([1, 3 + changes, 2])
    result = SimpleNamespace(accept_lens=given, copy_done=None, next_token_ids=None)
    end = lambda: request_rows.after_run_batch(result, server.scheduler, batch)  # noqa: E731
    if not changes:
        end()
        return
    said = trapped_by(server, end)
    assert (said.verdict, said.scalars["value"], said.scalars["expected"]) == ("token_differs", 4, 3)
    finding = named(server)
    assert (finding.rule, finding.confidence) == ("token-differs", Confidence.CERTAIN)
    assert "changed between the two" in finding.cause
