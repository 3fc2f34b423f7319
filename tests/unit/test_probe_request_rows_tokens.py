"""Probe request-rows on tokens and slots taken ahead: silent as SGLang does it, right where that is wrong."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime.allocator_history import History
from gemma4_runtime.checks.accepted_drafts import agreed_in_chain, listed_tokens
from gemma4_runtime.probes import request_rows
from gemma4_runtime.release.requests import held, stay_of
from gemma4_runtime.rows import tokens
from gemma4_runtime.rows.seen import seen_of
from gemma4_triage.finding import Confidence
from request_rows_server import DRAFTS, Server, named, trapped, trapped_by

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture
def server(attach, monkeypatch):
    return Server(monkeypatch, attach("trap", "request-rows", "host-alloc-kernels"))


def latest(server, *last):
    """Give each running request one token more, its latest."""
    for request, token in zip(server.world.requests, last, strict=False):
        request.output_ids.append(token)


def test_rows_of_a_draft_that_are_anothers_are_told_before_what_was_written_there(server):
    def another(made):
        rows = server.world.rows.req_to_token
        made.req_pool_indices[0] = made.req_pool_indices[1]
        rows[made.req_pool_indices[1], :4] = rows[made.req_pool_indices[2], :4]

    said = trapped_by(server, lambda: server.draft(another))
    assert (said.verdict, said.site, said.role) == ("row_index", "set_frozen_kv_positions", "draft")


class TestInputTokens:
    @pytest.mark.parametrize("mode", [ForwardMode.DECODE, ForwardMode.TARGET_VERIFY])
    @pytest.mark.parametrize("order", [(1, 0, 2), (1, 1, 2)])
    def test_of_another_request(self, server, mode, order):
        server.forward()
        latest(server, 50, 51, 52)

        def exchange(made):
            rows = made.input_ids.view(len(order), -1)
            rows[:, 0] = torch.tensor([server.world.requests[other].output_ids[-1] for other in order])

        if mode.is_decode():
            # A decode gives each a token of its own.
            server.world.decode = lambda: None
        said = trapped(server, exchange, mode)
        first, second = (held(request).req_pool_idx for request in server.world.requests[:2])
        assert (said.verdict, said.scalars["value"], said.scalars["expected"]) == ("token_differs", second, first)
        assert said.scalars["defect"] == ("swapped" if order == (1, 0, 2) else "foreign")
        finding = named(server)
        assert (finding.rule, finding.structure, finding.confidence) == ("token-differs", None, Confidence.LIKELY)
        assert f"the latest of the request in slot {second}" in finding.cause
        # No token is told.
        assert not {50, 51} & {bad.value for bad in said.offences}

    @pytest.mark.parametrize(("lasts", "bits"), [((50, 300, 90000), 8), ((50, 300, 257), None), ((5, 300, 90000), 16)])
    def test_cut_to_some_bits(self, server, lasts, bits):
        """One that is not cut says that none was."""
        server.forward()
        latest(server, *lasts)
        server.world.decode = lambda: None
        read = [last % (1 << (bits or 8)) for last in lasts]
        if bits is None:
            read[2] = lasts[2]
        said = trapped(server, lambda made: made.input_ids.copy_(torch.tensor(read)))
        assert said.scalars.get("cut_to_bits") == bits
        assert ("cut to" in named(server).cause) is (bits is not None)

    def test_of_the_step_before(self, server):
        server.forward()
        latest(server, 50, 51, 52)
        latest(server, 60, 61, 62)
        server.world.decode = lambda: None
        said = trapped(server, lambda made: made.input_ids.copy_(torch.tensor([50, 61, 62])))
        assert (said.scalars["value"], said.scalars["defect"]) == (-1, "stale")

    @pytest.mark.parametrize("accepted", [None, [1, 3, 2]])
    def test_with_overlap_the_latest_waits_in_a_result(self, server, accepted):
        server.forward()
        requests = server.world.requests
        given = torch.arange(70, 73) if accepted is None else torch.arange(70, 70 + 3 * DRAFTS)
        result = SimpleNamespace(
            next_token_ids=given,
            accept_lens=None if accepted is None else torch.tensor(accepted),
            copy_done=None,
        )
        server.scheduler.result_queue = [(SimpleNamespace(reqs=requests), result)]
        right = [70, 71, 72] if accepted is None else [70, 75, 77]
        request_rows.check_input_tokens(server.scheduler, requests, made := decode(right))
        made.input_ids[1] = 70
        said = trapped_by(server, lambda: request_rows.check_input_tokens(server.scheduler, requests, made))
        assert said.scalars["value"] == held(requests[0]).req_pool_idx

    def test_one_that_is_not_there_yet_says_nothing(self, server):
        server.forward()
        request_rows.check_input_tokens(server.scheduler, server.world.requests, decode([-1, -2, -3]))


# In 0.5.13.post1 the verification itself appends what it takes.
@pytest.mark.releases("0.5.23")
class TestWhichIsWrong:
    """A verification took 6, 7, 9 of the first request, and 9 of the second."""

    def verified(self, server, first, second):
        TestAcceptedDrafts().verify(server, [3, 1])
        for request, given in zip(server.world.requests, (first, second, [0]), strict=True):
            request.output_ids.extend(given)

    def differ(self, server, *read):
        made = SimpleNamespace(forward_mode=ForwardMode.TARGET_VERIFY, input_ids=torch.tensor([*read, 0]))
        requests = server.world.requests
        return trapped_by(server, lambda: request_rows.check_input_tokens(server.scheduler, requests, made))

    def test_the_answer(self, server):
        # The second got the token before its own in the result.
        self.verified(server, [6, 7, 9], [7])
        said = self.differ(server, 9, 9)
        assert (said.scalars["by_sample"], said.scalars["answer_at"], said.scalars["answer_begins"]) == ("input", 1, 4)
        finding = named(server)
        assert (finding.defect, finding.confidence) == (Defect.FOREIGN, Confidence.CERTAIN)

    @pytest.mark.parametrize("read", [5, 4])
    def test_the_first_tokens_of_a_batch_that_had_more_requests(self, server, read):
        server.forward()
        requests = server.world.requests[:2]
        latest(server, 5, 6)
        stays = [stay_of(one) for one in requests]
        given = (torch.tensor([5, 6]), torch.tensor([1, 1]), torch.tensor([[0], [1]]))
        seen_of(server.scheduler).sampled = (stays, given)
        made = SimpleNamespace(forward_mode=ForwardMode.TARGET_VERIFY, input_ids=torch.tensor([read]))
        said = trapped_by(server, lambda: request_rows.check_input_tokens(server.scheduler, requests[1:], made))
        assert said.scalars.get("left_before") == (1 if read == 5 else None)

    def test_what_the_step_reads(self, server):
        self.verified(server, [6, 7, 9], [9])
        said = self.differ(server, 8, 9)
        assert said.scalars["by_sample"] == "answer"
        assert named(server).confidence is Confidence.CERTAIN

    def test_after_a_decode_no_verification_tells(self, server):
        self.verified(server, [6, 7, 9], [9])
        server.forward()
        latest(server, 20, 21, 22)
        assert "by_sample" not in self.differ(server, 9, 21).scalars


class TestAnswers:
    """What a forward sampled is put into its requests' answers before the next one is chosen."""

    def sampled(self, server, *tokens):
        batch = SimpleNamespace(reqs=server.world.requests, forward_mode=ForwardMode.DECODE)
        server.next_batch()
        request_rows.after_run_batch(SimpleNamespace(next_token_ids=torch.tensor(tokens)), server.scheduler, batch)

    def between(self, server):
        return lambda: request_rows.check_answers(server.scheduler, server.world.requests)

    def test_two_answers_that_are_one_list(self, server):
        first, second = server.world.requests[:2]
        second.output_ids = first.output_ids
        said = trapped_by(server, self.between(server))
        slots = [held(one).req_pool_idx for one in (first, second)]
        assert (said.scalars["why"], said.scalars["value"], said.scalars["request_slot"]) == ("one list", *slots)
        finding = named(server)
        assert (finding.rule, "are one list (output_ids)" in finding.cause) == ("token-differs", True)

    def test_what_was_sent_is_not_sent_again(self, server):
        request = server.world.requests[1]
        request.send_token_offset = 6
        self.between(server)()
        request.send_token_offset = 2
        said = trapped_by(server, self.between(server))
        assert (said.scalars["counter"], said.scalars["value"], said.scalars["expected"]) == ("send_token_offset", 2, 6)
        finding = named(server)
        assert (finding.structure, "(send_token_offset): 2 where 6 belongs" in finding.cause) == (
            *(Structure.REQUEST_COUNTERS, True),
        )

    def test_each_gets_its_own(self, server):
        self.sampled(server, 50, 51, 52)
        latest(server, 50, 51, 52)
        self.between(server)()

    def test_a_chunk_in_the_middle_gets_none(self, server):
        self.sampled(server, 50, 51, 52)
        latest(server, 50)
        self.between(server)()

    @pytest.mark.parametrize(
        ("given", "defect", "whose"),
        [((51, 50, 52), Defect.SWAPPED, 1), ((51, 51, 52), Defect.FOREIGN, 1), ((60, 51, 52), None, None)],
    )
    def test_another_is_told_with_whose_it_is(self, server, given, defect, whose):
        self.sampled(server, 50, 51, 52)
        latest(server, *given)
        said = trapped_by(server, self.between(server))
        slots = [held(request).req_pool_idx for request in server.world.requests]
        assert (said.verdict, said.site) == ("token_differs", "Scheduler.get_next_batch_to_run")
        assert said.scalars["value"] == (-1 if whose is None else slots[whose])
        finding = named(server)
        assert (finding.rule, finding.defect, finding.confidence) == ("token-differs", defect, Confidence.CERTAIN)
        assert "another token than its forward sampled" in finding.cause
        assert not {50, 51, 60} & {bad.value for bad in said.offences}

    @pytest.mark.parametrize("kind", ["ended", "grammar", "another stay", "overlap"])
    def test_what_may_be_another_says_nothing(self, server, kind, monkeypatch):
        server.scheduler.enable_overlap = kind == "overlap"
        self.sampled(server, 50, 51, 52)
        latest(server, 60, 51, 52)
        request = server.world.requests[0]
        if kind == "ended":
            monkeypatch.setattr(request, "finished", lambda: True, raising=False)
        elif kind == "grammar":
            request.grammar = object()
        elif kind == "another stay":
            request.retraction_count += 1
        self.between(server)()


class TestChunks:
    def chunked(self, server):
        server.forward()
        request = server.world.requests[0]
        server.scheduler.chunked_req = request
        tokens.note_chunk(server.scheduler, server.world.requests)
        return request

    def test_what_follows_a_chunk_in_the_middle_is_no_token(self, server):
        request = self.chunked(server)
        tokens.check_chunk(server.scheduler)
        count = len(request.output_ids)
        request.output_ids.append(7)
        said = trapped_by(server, lambda: tokens.check_chunk(server.scheduler))
        assert (said.verdict, said.scalars["value"], said.scalars["expected"]) == ("token_differs", count + 1, count)
        finding = named(server)
        assert (finding.rule, finding.defect, finding.confidence) == (
            *("token-differs", Defect.OFF_BY_ONE, Confidence.CERTAIN),
        )

    @pytest.mark.parametrize("mode", [ForwardMode.EXTEND, ForwardMode.DECODE])
    def test_what_follows_the_last_is_one_and_with_overlap_it_waits(self, server, mode):
        request = self.chunked(server)
        server.scheduler.chunked_req = None
        request.output_ids.append(7)
        batch = SimpleNamespace(reqs=[request], forward_mode=mode)
        server.scheduler.result_queue = [(batch, None)]
        if mode.is_extend():
            trapped_by(server, lambda: tokens.check_chunk(server.scheduler))
        else:
            tokens.check_chunk(server.scheduler)

    def test_one_that_was_retracted_begins_anew(self, server):
        request = self.chunked(server)
        request.retraction_count += 1
        request.output_ids.append(7)
        tokens.check_chunk(server.scheduler)


def decode(read):
    return SimpleNamespace(forward_mode=ForwardMode.DECODE, input_ids=torch.tensor(read))


class TestAcceptedDrafts:
    """Two requests with chains of four; the target agrees to three tokens of the first, and to one of the second."""

    def verify(self, server, lengths, taken=((0, 1, 2, -1), (4, -1, -1, -1)), greedy=True):
        server.forward()
        batch = SimpleNamespace(
            forward_mode=ForwardMode.TARGET_VERIFY,
            sampling_info=SimpleNamespace(is_all_greedy=greedy),
            reqs=server.world.requests[:2],
        )
        verified = SimpleNamespace(tree_topk=1, draft_token=torch.tensor([5, 6, 7, 8, 5, 6, 7, 8]))
        logits = torch.nn.functional.one_hot(torch.tensor([6, 7, 9, 9, 9, 7, 8, 9]), 10).float()
        output = SimpleNamespace(next_token_logits=logits)
        result = (logits.argmax(-1), torch.tensor(lengths), torch.tensor(taken))
        request_rows.after_sample(result, verified, batch, output, None)

    # In 0.5.13.post1 the verification itself appends what it takes.
    @pytest.mark.releases("0.5.23")
    def test_silent_where_the_target_agreed(self, server):
        self.verify(server, [3, 1])

    # In 0.5.13.post1 the verification itself appends what it takes.
    @pytest.mark.releases("0.5.23")
    @pytest.mark.parametrize("lengths", [[4, 1], [2, 1], [3, 2]])
    def test_a_number_that_the_target_did_not_agree_to(self, server, lengths):
        row = int(lengths[1] != 1)
        said = trapped_by(server, lambda: self.verify(server, lengths))
        assert (said.verdict, said.site) == ("token_differs", "eagle_sample")
        assert (said.scalars["value"], said.scalars["expected"]) == (lengths[row], (3, 1)[row])
        finding = named(server)
        assert (finding.rule, finding.defect, finding.confidence) == (
            *("token-differs", Defect.OFF_BY_ONE, Confidence.CERTAIN),
        )
        assert ("rejected are in the answer" in finding.cause) == (lengths != [2, 1])

    # In 0.5.13.post1 the verification itself appends what it takes.
    @pytest.mark.releases("0.5.23")
    def test_of_sampled_requests_the_list_of_what_was_taken_is_asked(self, server):
        self.verify(server, [3, 1], greedy=False)
        trapped_by(server, lambda: self.verify(server, [4, 1], greedy=False))
        assert named(server).confidence is Confidence.LIKELY

    # In 0.5.13.post1 the verification itself appends what it takes.
    @pytest.mark.releases("0.5.23")
    def test_a_list_that_the_target_did_not_agree_to(self, server):
        taken = ((0, 1, 2, -1), (4, 5, -1, -1))
        said = trapped_by(server, lambda: self.verify(server, [3, 1], taken))
        assert (said.scalars["value"], said.scalars["expected"]) == (2, 1)

    def test_the_sums(self):
        drafts, predicted = np.array([[5, 6, 7, 8], [5, 6, 7, 8]]), np.array([[6, 7, 8, 1], [0, 7, 8, 1]])
        assert agreed_in_chain(drafts, predicted).tolist() == [4, 1]
        assert listed_tokens(np.array([[0, 2, -1], [3, -1, 4], [-1, -1, -1]])).tolist() == [2, 1, 0]


# Before it a verification of MTP v1 writes slots that the request's count does not have yet, and nothing is wrong.
@pytest.mark.releases("0.5.23")
class TestSlotsAhead:
    @pytest.mark.parametrize("ledger", [True, False])
    def test_too_few_for_a_verification(self, attach, monkeypatch, ledger):
        more = ("leak-ledger",) if ledger else ()
        server = Server(monkeypatch, attach("trap", "request-rows", *more, "host-alloc-kernels"))
        server.forward(mode=ForwardMode.TARGET_VERIFY)
        request = server.world.requests[0]
        slot, rows = held(request).req_pool_idx, server.world.rows.req_to_token

        def shorten(made):
            held(request).kv_allocated_len = int(made.seq_lens[0]) + 1
            rows[slot, held(request).kv_allocated_len :] = 0

        said = trapped(server, shorten, ForwardMode.TARGET_VERIFY)
        assert (said.scalars["why"], said.scalars["defect"]) == ("reserved", "lost")
        finding = named(server)
        assert (finding.structure, finding.defect) == (Structure.REQUEST_ROW, Defect.LOST)
        assert finding.confidence is Confidence.CERTAIN
        assert "too few were taken ahead" in finding.cause

    @pytest.mark.parametrize("ledger", [True, False])
    def test_a_count_that_is_too_small_for_what_the_row_has(self, attach, monkeypatch, ledger):
        more = ("leak-ledger",) if ledger else ()
        server = Server(monkeypatch, attach("trap", "request-rows", *more, "host-alloc-kernels"))
        server.forward(mode=ForwardMode.TARGET_VERIFY)
        request = server.world.requests[0]

        def shorten(made):
            held(request).kv_allocated_len = int(made.seq_lens[0]) + 1

        trapped(server, shorten, ForwardMode.TARGET_VERIFY)
        finding = named(server)
        if ledger:
            assert finding.structure is Structure.REQUEST_COUNTERS
        else:
            assert finding.confidence is Confidence.LIKELY

    def test_with_the_allocators_calls_the_counts_of_others_are_told(self, attach, monkeypatch):
        names = ("request-rows", "swa-allocator", "leak-ledger", "host-alloc-kernels")
        server = Server(monkeypatch, attach("trap", *names))
        server.forward(mode=ForwardMode.TARGET_VERIFY)
        requests = server.world.requests
        begins = [held(request).kv_committed_len for request in requests]
        ends = [begin + 16 * (2 + at) for at, begin in enumerate(begins)]

        def turn(made):
            told = {"prefix_lens": begins, "seq_lens": ends}
            monkeypatch.setattr(History, "latest", lambda history, name: told if name == "alloc_extend" else {})
            held(requests[0]).kv_allocated_len = begins[0]
            for request, other in zip(requests[1:], ends[:-1], strict=True):
                held(request).kv_allocated_len = other
            # The first keeps what it had: the last one's length would be larger.
            ends[-1] = begins[0]

        said = trapped(server, turn, ForwardMode.TARGET_VERIFY)
        assert said.scalars["taken_until"] == ",".join(map(str, ends))
        assert said.scalars["counted"] == ",".join(str(held(request).kv_allocated_len) for request in requests)
        finding = named(server)
        assert (finding.structure, finding.defect) == (Structure.REQUEST_COUNTERS, Defect.SWAPPED)
