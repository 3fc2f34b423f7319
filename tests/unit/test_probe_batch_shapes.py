"""Probe batch-shapes on SGLang's own ScheduleBatch, ModelRunner and speculative states."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.model_executor.model_runner import ModelRunner
from sglang.srt.speculative.frozen_kv_mtp_info import FrozenKVMTPDraftInput, FrozenKVMTPVerifyInput

import mtp_batches
from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.probes import batch_shapes
from gemma4_runtime.steps import Running as RunningStep
from gemma4_runtime.steps import Step
from published import IN_A_CONTEXT, published

if IN_A_CONTEXT:
    from sglang.srt.model_executor.runner.eager_runner import EagerRunner
    from sglang.srt.speculative.eagle_utils import eagle_prepare_for_decode

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


def idle_input():
    return FrozenKVMTPDraftInput.create_idle_input(
        device="cpu", hidden_size=8, dtype=torch.float32, topk=1, capture_hidden_mode=CaptureHiddenMode.LAST
    )


def verify_input():
    return FrozenKVMTPVerifyInput.__new__(FrozenKVMTPVerifyInput)


def batch(spec_info, reqs=()):
    return ScheduleBatch(reqs=list(reqs), spec_info=spec_info, forward_mode=ForwardMode.DECODE)


class Finished:
    """All that filter_batch and the dump ask of a request that is done."""

    def finished(self):
        return True


def eager_batch(tokens, rows):
    return ForwardBatch(
        forward_mode=ForwardMode.DECODE,
        batch_size=tokens,
        input_ids=torch.zeros(tokens, dtype=torch.int64),
        req_pool_indices=torch.arange(tokens),
        seq_lens=torch.full((tokens,), 20),
        out_cache_loc=None if rows is None else torch.arange(rows),
        seq_lens_sum=20 * tokens,
    )


@pytest.fixture
def runner():
    """Return a runner without a model: the probe reads three attributes of it."""
    runner = ModelRunner.__new__(ModelRunner)
    runner.is_draft_worker, runner.forward_pass_id, runner.page_size = True, 7, 16
    return runner


@pytest.fixture
def view(runner):
    """Return what copies an eager forward's inputs; without a model it fails on its own, behind the probe."""
    if not IN_A_CONTEXT:
        return lambda made: runner._eager_fb_view(made)
    eager = EagerRunner.__new__(EagerRunner)
    eager.model_runner = runner
    # Looked up when it is called: the hook comes after this.
    return lambda made: eager.load_batch(made)


def the_dump(folder):
    (entry,) = DumpStore(folder).list()
    return read_dump(entry.path)


class TestWriteRows:
    def test_rows_of_an_earlier_step_are_trapped_before_the_copy(self, attach, view):
        dumps = attach("trap", "batch-shapes")
        with pytest.raises(TrappedViolation, match="2 tokens and 29 write locations"):
            view(eager_batch(2, 29))
        found = the_dump(dumps)
        assert (found.manifest.rule, found.manifest.verdict) == ("batch-shapes", "stale_write_rows")
        assert (found.manifest.role, found.manifest.step) == ("draft", 7)
        assert found.manifest.site == ("EagerRunner.load_batch" if IN_A_CONTEXT else "ModelRunner._eager_fb_view")
        assert found.manifest.scalars["rows"] == 29
        assert found.tensor("out_cache_loc").tolist() == list(range(29))

    @pytest.mark.parametrize("rows", [None, 2, 1])
    def test_as_many_rows_as_tokens_fewer_or_none_pass(self, attach, runner, rows):
        dumps = attach("trap", "batch-shapes")
        batch_shapes.before_eager_view(runner, eager_batch(2, rows))
        assert DumpStore(dumps).list() == []

    def test_log_goes_on_into_sglangs_own_code(self, attach, view):
        dumps = attach("log", "batch-shapes")
        with pytest.raises(AttributeError):
            view(eager_batch(2, 29))
        assert the_dump(dumps).manifest.action == "logged"


AHEAD = SimpleNamespace(
    speculative_algorithm="FROZEN_KV_MTP",
    speculative_num_steps=7,
    speculative_eagle_topk=1,
    speculative_num_draft_tokens=8,
    max_speculative_num_draft_tokens=8,
    page_size=16,
)
"""Of these arguments SGLang allocates 16 slots ahead."""


@pytest.fixture(autouse=True)
def server_arguments(monkeypatch):
    if not IN_A_CONTEXT:
        monkeypatch.setattr("sglang.srt.server_args._global_server_args", AHEAD)
    with published(AHEAD):
        yield


class Running:
    """A batch as far as the probe reads it. requests: (committed, allocated) slots of each."""

    forward_mode, spec_info = ForwardMode.DECODE, None
    token_to_kv_pool_allocator = SimpleNamespace(page_size=16)

    def __init__(self, width, *requests):
        self.req_to_token_pool = SimpleNamespace(req_to_token=torch.zeros(4, width))
        self.held = [
            SimpleNamespace(req_pool_idx=2 + i, kv_committed_len=committed, kv_allocated_len=allocated)
            for i, (committed, allocated) in enumerate(requests)
        ]
        self.reqs = [SimpleNamespace(kv=one) if IN_A_CONTEXT else one for one in self.held]

    def prepare(self):
        """Allocate what the next drafts need, as SGLang does."""
        if IN_A_CONTEXT:
            self.spec_info = idle_input()
            return eagle_prepare_for_decode(self)
        return FrozenKVMTPDraftInput.prepare_for_decode(idle_input(), self)


class TestRows:
    """What the live engine allocates so is a case of the corpus, `row-too-short`."""

    def test_slots_behind_a_rows_end_are_trapped_before_they_are_written(self, attach):
        dumps = attach("trap", "batch-shapes")
        asked = Running(116, (100, 116), (110, 116), (20, 117))
        with pytest.raises(
            TrappedViolation, match="slot 3 is to have 126 KV slots and its row of req_to_token has 116"
        ):
            asked.prepare()
        assert [request.kv_allocated_len for request in asked.held] == [116, 116, 117]
        manifest = the_dump(dumps).manifest
        assert (manifest.rule, manifest.verdict) == ("batch-shapes", "row_overflow")
        assert (manifest.offence_count, manifest.scalars["longest"], manifest.scalars["width"]) == (2, 126, 116)
        assert manifest.scalars["spec_info"] == "FrozenKVMTPDraftInput"

    @pytest.mark.parametrize("requests", [(), ((100, 116),), ((1, 1), (100, 100))])
    def test_slots_up_to_its_end_pass(self, attach, requests):
        dumps = attach("trap", "batch-shapes")
        batch_shapes.before_eagle_decode(Running(116, *requests))
        assert DumpStore(dumps).list() == []


class TestSpeculativeState:
    def test_what_is_found_between_steps_has_the_number_of_the_step_before(self, attach):
        dumps = attach("trap", "batch-shapes")
        with RunningStep(Step(7, ())):
            pass
        with pytest.raises(TrappedViolation):
            batch(verify_input(), [Finished()]).filter_batch()
        assert the_dump(dumps).manifest.step == 7

    def test_filter_with_a_verify_input_is_trapped(self, attach):
        dumps = attach("trap", "batch-shapes")
        with pytest.raises(TrappedViolation, match="FrozenKVMTPVerifyInput, which has no filter_batch"):
            batch(verify_input(), [Finished()]).filter_batch()
        manifest = the_dump(dumps).manifest
        assert (manifest.verdict, manifest.site) == ("unusable_spec_info", "ScheduleBatch.filter_batch")
        assert (manifest.scalars["requests"], manifest.scalars["finished"]) == (1, 1)

    def test_merge_with_a_verify_input_is_trapped(self, attach):
        dumps = attach("trap", "batch-shapes")
        with pytest.raises(TrappedViolation, match="has no merge_batch"):
            batch(verify_input()).merge_batch(batch(idle_input()))
        manifest = the_dump(dumps).manifest
        assert manifest.site == "ScheduleBatch.merge_batch"
        assert manifest.scalars["joining_spec_info"] == "FrozenKVMTPDraftInput"

    def test_merge_of_one_sided_state_is_trapped(self, attach):
        attach("trap", "batch-shapes")
        with pytest.raises(TrappedViolation, match="has no speculative state"):
            batch(idle_input()).merge_batch(batch(None))

    @pytest.mark.parametrize("drafts", [False, True])
    def test_what_can_follow_is_silent(self, attach, drafts):
        dumps = attach("trap", "batch-shapes")
        state = idle_input() if drafts else None
        kept = batch(state, [Finished()])
        kept.filter_batch()
        assert kept.reqs == []
        batch_shapes.before_merge(batch(state), batch(state))
        assert DumpStore(dumps).list() == []


# 0.5.14 and later need no such fix: the V1 worker is gone.
@pytest.mark.releases("0.5.13.post1")
class TestWithTheFix:
    """The fix is `spec-info-guards`, which later releases have themselves; SGLang can really merge these batches."""

    @pytest.fixture(autouse=True)
    def arguments_of_the_batches(self, monkeypatch, server_arguments):
        monkeypatch.setattr("sglang.srt.server_args._global_server_args", mtp_batches.ARGUMENTS)

    @pytest.fixture(params=["filter", "merge"])
    def act(self, request):
        """Return what filters a batch, or merges a prefill into it."""
        joins = mtp_batches.batch([mtp_batches.request("joins")], mtp_batches.draft_input(7))
        return (lambda one: one.filter_batch()) if request.param == "filter" else lambda one: one.merge_batch(joins)

    def test_a_batch_of_finished_requests_is_no_finding(self, attach, act):
        dumps = attach("trap", "batch-shapes", "spec-info-guards")
        act(mtp_batches.batch([mtp_batches.request("a", finished=True)], verify_input()))
        assert DumpStore(dumps).list() == []

    def test_a_batch_with_others_is_trapped_first(self, attach, act):
        dumps = attach("trap", "batch-shapes", "spec-info-guards")
        with pytest.raises(TrappedViolation):
            act(mtp_batches.batch([mtp_batches.request("a", finished=True), mtp_batches.request("b")], verify_input()))
        assert the_dump(dumps).manifest.scalars["finished"] == 1


def test_the_self_test_passes():
    batch_shapes.self_test()
