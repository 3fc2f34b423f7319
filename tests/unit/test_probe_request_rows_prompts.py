"""Probe request-rows on what a prefill reads, which is its requests' own, and on who is in a batch."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime.probes import request_rows
from gemma4_runtime.release.requests import held
from gemma4_runtime.rows import members, tokens
from gemma4_triage.finding import Confidence
from request_rows_server import Server, named, trapped, trapped_by

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture
def server(attach, monkeypatch):
    return Server(monkeypatch, attach("trap", "request-rows", "host-alloc-kernels"))


@pytest.mark.parametrize(("missing", "defect"), [(0, "zero"), (2, "negative")])
def test_a_prefill_without_a_new_token(server, missing, defect):
    def read_again(made):
        made.extend_prefix_lens_cpu[1] += made.extend_seq_lens_cpu[1] + missing
        made.extend_seq_lens_cpu[1] = -missing

    said = trapped(server, read_again, ForwardMode.EXTEND)
    slot = held(server.world.requests[1]).req_pool_idx
    assert (said.verdict, said.scalars["why"], said.scalars["request_slot"]) == ("length_differs", "empty", slot)
    assert (said.scalars["structure"], said.scalars["defect"]) == ("batch lengths", defect)


class TestPromptTokens:
    def test_one_that_was_changed_on_its_way(self, server):
        def change(made):
            made.input_ids[len(made.input_ids) // 2] += 1

        said = trapped(server, change, ForwardMode.EXTEND)
        assert (said.verdict, said.scalars["why"], said.scalars["moved"]) == ("token_differs", "prompt", False)
        assert (said.scalars["rows_wrong"], said.scalars["tokens_wrong"]) == (1, 1)
        finding = named(server)
        assert (finding.rule, finding.confidence) == ("token-differs", Confidence.LIKELY)
        assert "1 of its tokens differ. Which of them was changed is not known" in finding.cause

    @pytest.mark.parametrize(("side", "sure"), [("own", True), ("read", False)])
    def test_the_list_by_which_prompts_are_read_takes_a_side(self, server, side, sure):
        def change(made):
            request = server.world.requests[-1]
            name = "full_untruncated_fill_ids" if hasattr(request, "full_untruncated_fill_ids") else "fill_ids"
            fill = list(request.origin_input_ids)
            made.input_ids[-1] += 7
            fill[-1] += 7 * (side == "read")
            setattr(request, name, fill)

        said = trapped(server, change, ForwardMode.EXTEND)
        assert said.scalars["by_fill"] == side
        finding = named(server)
        assert finding.confidence is (Confidence.CERTAIN if sure else Confidence.LIKELY)
        assert ("the prefix cache gives them to whoever has the right ones" in finding.cause) == sure

    def test_tokens_that_stand_a_place_further_on(self, server):
        def change(made):
            span = made.extend_seq_lens_cpu[0]
            request = server.world.requests[0]
            request.output_ids = [*request.output_ids, int(made.input_ids[span - 1]) + 1]
            made.input_ids[:span] += 1

        assert trapped(server, change, ForwardMode.EXTEND).scalars["shift"] == 1
        assert "its own tokens 1 place further on" in named(server).cause

    def test_those_of_all_in_another_order(self, server):
        def turn(made):
            made.input_ids.copy_(made.input_ids.roll(3))

        said = trapped(server, turn, ForwardMode.EXTEND)
        assert (said.scalars["moved"], said.scalars["defect"]) == (True, "swapped")
        assert "in another order than its requests" in named(server).cause

    def test_the_place_is_that_of_the_request(self, server):
        def last(made):
            made.input_ids[-1] = 0

        said = trapped(server, last, ForwardMode.EXTEND)
        request = server.world.requests[-1]
        assert said.scalars["place"] == held(request).kv_committed_len - 1
        assert said.scalars["request_slot"] == held(request).req_pool_idx

    @pytest.mark.parametrize("name", ["multimodal_inputs", "input_embeds"])
    def test_what_pictures_and_embeddings_stand_for_is_left_out(self, server, name):
        for request in server.world.requests:
            setattr(request, name, object())
        server.forward(lambda made: made.input_ids.zero_(), ForwardMode.EXTEND)

    def test_tokens_that_nobody_has_sampled_yet_are_left_out(self, server):
        server.forward(lambda made: made.input_ids[-1:].fill_(-3), ForwardMode.EXTEND)


@pytest.mark.parametrize("mode", [ForwardMode.DECODE, ForwardMode.TARGET_VERIFY], ids=lambda mode: mode.name)
def test_a_request_whose_prompt_is_read_in_chunks_is_in_no_decode(server, mode, monkeypatch):
    request = server.world.requests[1]
    server.scheduler.chunked_req = request
    monkeypatch.setattr(members, "prefilled_until", lambda one: 32)
    said = trapped(server, mode=mode)
    assert (said.verdict, said.scalars["why"], said.scalars["read"]) == ("row_index", "chunked", 32)
    finding = named(server)
    assert finding.structure is not None
    assert "prompt is still read in chunks: 32 of" in finding.cause


def test_a_prompt_that_has_been_read_is(server, monkeypatch):
    server.scheduler.chunked_req = server.world.requests[1]
    monkeypatch.setattr(members, "prefilled_until", lambda one: 10_000)
    server.forward()
    assert list(server.dumps.glob("*request-rows*")) == []


def test_a_request_that_a_merge_has_twice_is_found_ahead_of_the_next_step(server):
    server.forward()
    requests = [*server.world.requests, server.world.requests[0]]
    rows = torch.tensor([held(request).req_pool_idx for request in requests])
    batch = SimpleNamespace(reqs=requests, req_pool_indices=rows)
    said = trapped_by(server, lambda: request_rows.after_batch_changes(None, batch))
    assert (said.scalars["why"], said.site) == ("in it twice", "ScheduleBatch.filter_batch or merge_batch")


@pytest.mark.parametrize("mode", [ForwardMode.DECODE, ForwardMode.EXTEND], ids=lambda mode: mode.name)
def test_a_request_that_is_in_a_batch_twice(server, mode):
    server.forward()
    server.world.requests.append(server.world.requests[0])
    said = trapped_by(server, lambda: server.forward(mode=mode))
    assert (said.verdict, said.scalars["why"], said.scalars["defect"]) == ("row_index", "in it twice", "duplicate")
    finding = named(server)
    assert (finding.structure, finding.defect) == (Structure.ROW_INDICES, Defect.DUPLICATE)


@pytest.mark.parametrize(
    ("mode", "counts"), [(ForwardMode.MIXED, None), (ForwardMode.EXTEND, [1])], ids=["mixed", "another rank's prefill"]
)
def test_a_decode_that_waits_in_a_prefills_forward_is_no_chunk(server, mode, counts):
    """The last chunk's result was looked at, with overlap, and gave a token; the first decode's result waits."""
    request = server.world.requests[1]
    server.scheduler.enable_overlap = True
    server.scheduler.chunked_req = request
    del request.output_ids[:]
    tokens.note_chunk(server.scheduler, [request])
    server.scheduler.chunked_req = None
    request.output_ids.append(7)
    waiting = SimpleNamespace(reqs=[request], forward_mode=mode, **({} if counts is None else {"extend_lens": counts}))
    server.scheduler.result_queue = [(waiting, None)]
    tokens.check_chunk(server.scheduler)
