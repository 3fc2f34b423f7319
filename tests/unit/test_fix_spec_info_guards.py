"""Merge and filter of SGLang's own batches that lack a draft input: what goes on, and what is refused.

That the engine dies without the fix and gives the same tokens with it: tests/engine/test_repro_mtp.py.
"""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt import server_args
from sglang.srt.speculative.eagle_info import EagleDraftExtendInput
from sglang.srt.speculative.frozen_kv_mtp_info import (
    FrozenKVMTPDraftExtendInput,
    FrozenKVMTPDraftInput,
    _to_frozen_kv_mtp_draft_extend_input,
)
from sglang.srt.speculative.frozen_kv_mtp_worker import FrozenKVMTPWorker
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from gemma4_runtime.errors import UnusableSpecInfo
from gemma4_runtime.fixes import spec_info_guards
from mtp_batches import ARGUMENTS, HIDDEN, batch, draft_input, request, verify_input

# The V1 worker that left a batch without a draft input is gone since 0.5.14.
pytestmark = pytest.mark.releases("0.5.13.post1")

TENSORS = ("bonus_tokens", "hidden_states", "topk_p", "topk_index")


@pytest.fixture(autouse=True)
def server_arguments(monkeypatch):
    monkeypatch.setattr(server_args, "_global_server_args", ARGUMENTS)


@pytest.fixture
def guards(attach):
    attach("off", "spec-info-guards")


def done(*rids):
    return [request(rid, finished=True) for rid in rids]


def same(state, wanted):
    return all(torch.equal(getattr(state, name), getattr(wanted, name)) for name in TENSORS)


def ids(one):
    return [each.rid for each in one.reqs]


class TestMerge:
    def test_without_the_fix_sglang_dies(self):
        with pytest.raises(AttributeError, match="'FrozenKVMTPVerifyInput' object has no attribute 'merge_batch'"):
            batch(done("a"), verify_input()).merge_batch(batch([request("b")], draft_input(7)))

    def test_with_the_fix_the_batch_is_drafted_for_who_joins(self, guards):
        running = batch(done("a", "b"), verify_input())
        running.merge_batch(batch([request("c"), request("d")], draft_input(7, 8)))
        assert same(running.spec_info, draft_input(7, 8))
        running.filter_batch(v1_spec_info_filtered=True)
        assert ids(running) == ["c", "d"]
        assert same(running.spec_info, draft_input(7, 8))

    def test_a_side_that_joins_is_treated_alike(self, guards):
        running = batch([request("a")], draft_input(7))
        running.merge_batch(batch(done("b"), verify_input()))
        assert same(running.spec_info, draft_input(7))

    def test_nobody_is_left_on_either_side(self, guards):
        running = batch(done("a"), verify_input())
        running.merge_batch(batch(done("b"), verify_input()))
        assert running.spec_info is None
        running.filter_batch(v1_spec_info_filtered=True)
        assert ids(running) == []

    def test_what_the_worker_leaves_under_dp_attention_is_mended(self, guards, monkeypatch):
        """SGLang puts its empty draft input on a copy of the batch there, which takes a device of its own: CUDA."""
        running = batch(done("a"), None)
        empty = EagleDraftExtendInput.create_idle_input(device="cpu", hidden_size=None, dtype=None)
        running.spec_info = _to_frozen_kv_mtp_draft_extend_input(empty)
        copied = running.copy()
        copied.device = "cpu"
        monkeypatch.setattr(running, "copy", lambda: copied)
        worker = FrozenKVMTPWorker.__new__(FrozenKVMTPWorker)
        worker.device, worker.topk = "cpu", 1
        worker._model_runner = SimpleNamespace(model=SimpleNamespace(backbone_hidden_size=HIDDEN))
        worker.model_config = SimpleNamespace(dtype=torch.float32)
        worker.forward_draft_extend_after_decode(running)
        assert isinstance(copied.spec_info, FrozenKVMTPDraftInput)
        assert isinstance(running.spec_info, FrozenKVMTPDraftExtendInput)
        running.merge_batch(batch([request("b")], draft_input(7)))
        assert same(running.spec_info, draft_input(7))

    @pytest.mark.parametrize("joins", [draft_input(7), verify_input(), None])
    def test_unfinished_requests_without_a_draft_input_are_refused(self, guards, joins):
        running = batch([*done("a"), request("b")], verify_input())
        with pytest.raises(UnusableSpecInfo, match=r"merge_batch: .*\(1: b\) have a FrozenKVMTPVerifyInput where"):
            running.merge_batch(batch(done("c"), joins))
        assert ids(running) == ["a", "b"]
        assert len(running.seq_lens) == len(running.sampling_info) == 2

    def test_a_joining_request_without_any_state_is_refused_beside_one_that_cannot_be_merged(self, guards):
        with pytest.raises(UnusableSpecInfo, match=r"\(1: b\) have nothing where"):
            batch(done("a"), verify_input()).merge_batch(batch([request("b")], None))


class TestFilter:
    def test_without_the_fix_sglang_dies_where_a_request_stays(self):
        with pytest.raises(AttributeError, match="has no attribute 'filter_batch'"):
            batch([*done("a"), request("b")], verify_input()).filter_batch(v1_spec_info_filtered=True)

    def test_with_the_fix_it_says_why(self, guards):
        running = batch([*done("a"), *(request(rid) for rid in "bcdefg")], verify_input())
        with pytest.raises(UnusableSpecInfo, match=r"filter_batch: .*\(6: b, c, d, e, \.\.\.\)"):
            running.filter_batch(v1_spec_info_filtered=True)
        assert len(running.reqs) == 7

    @pytest.mark.parametrize("keep_indices", [None, [0, 1], []])
    def test_where_sglang_returns_early_nothing_is_said_or_changed(self, guards, caplog, keep_indices):
        everyone = [request("a"), request("b")]
        running = batch(everyone, verify_input())
        state = running.spec_info
        running.filter_batch(keep_indices=keep_indices)
        assert running.reqs == ([] if keep_indices == [] else everyone)
        assert running.spec_info is state
        assert "spec-info-guards:" not in caplog.text

    def test_finished_requests_that_are_all_kept_stay(self, guards):
        running = batch(done("a", "b"), verify_input())
        running.filter_batch(keep_indices=[0, 1])
        assert ids(running) == ["a", "b"]

    @pytest.mark.parametrize("arguments", [{}, {"keep_indices": [1]}, {"v1_spec_info_filtered": True}])
    def test_finished_requests_leave(self, guards, arguments):
        running = batch(done("a", "b"), verify_input())
        running.filter_batch(**arguments)
        assert ids(running) == []

    @pytest.mark.parametrize("wrap", [lambda one: one, lambda one: [one]])
    def test_a_chunked_request_leaves_too(self, guards, wrap):
        chunked = request("b")
        running = batch([*done("a"), chunked], verify_input())
        running.filter_batch(wrap(chunked))
        assert ids(running) == []


@pytest.mark.parametrize("algorithm", ["NGRAM", "DFLASH", "STANDALONE"])
class TestOtherAlgorithms:
    """Their states, and what these lack, are SGLang's own matter."""

    def of(self, algorithm, *requests):
        made = batch(list(requests), verify_input())
        made.spec_algorithm = SpeculativeAlgorithm[algorithm]
        return made

    def test_a_filter_is_left_to_sglang(self, guards, algorithm):
        with pytest.raises(AttributeError, match="has no attribute 'filter_batch'"):
            self.of(algorithm, *done("a"), request("b")).filter_batch()

    def test_so_is_a_merge(self, guards, algorithm):
        with pytest.raises(AttributeError, match="has no attribute 'merge_batch'"):
            self.of(algorithm, request("a")).merge_batch(self.of(algorithm, request("b")))


class TestClean:
    """Where there is a draft input, or where SGLang needs none, nothing is changed."""

    def run(self):
        running = batch([*done("a"), request("b"), request("c")], draft_input(7, 8))
        running.filter_batch(v1_spec_info_filtered=True)
        running.merge_batch(batch([request("d")], draft_input(9)))
        running.reqs[0].finished_reason = running.reqs[1].finished_reason = done("x")[0].finished_reason
        running.filter_batch()
        return running

    def test_batches_are_as_without_it(self, attach, caplog):
        alone = self.run()
        attach("off", "spec-info-guards")
        guarded = self.run()
        assert ids(guarded) == ids(alone) == ["d"]
        assert same(guarded.spec_info, alone.spec_info)
        assert guarded.spec_info.bonus_tokens.tolist() == [9]
        assert "spec-info-guards:" not in caplog.text

    def test_it_hands_on_what_it_was_given(self):
        state = draft_input(7)
        one = batch([request("a")], state)
        assert spec_info_guards.before_filter(one) is None
        spec_info_guards.before_merge(one, batch([request("b")], None))
        spec_info_guards.before_merge(batch([request("b")], None), one)
        assert one.spec_info is state

    def test_a_batch_without_speculation_has_no_state(self, guards):
        running = batch([*done("a"), request("b")], None)
        running.filter_batch()
        running.merge_batch(batch([request("c")], None))
        assert ids(running) == ["b", "c"]
