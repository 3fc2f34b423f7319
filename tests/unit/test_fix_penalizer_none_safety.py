"""MTP steps without sampling_info or penalizers, on SGLang's own worker class, batches and penalizers.

Whole steps, and the tokens that come of them, are in tests/engine/test_penalizer_none_safety_live.py.
"""

import copy
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt import server_args
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.frozen_kv_mtp_worker import FrozenKVMTPWorker

from gemma4_runtime.errors import PenaltiesLost
from gemma4_runtime.fixes.penalizer_none_safety import SummedPenalties, around_step
from mtp_batches import ARGUMENTS, VOCABULARY, batch, draft_input, request, verify_input

# The V1 worker that died of it is gone since 0.5.14.
pytestmark = pytest.mark.releases("0.5.13.post1")

SAMPLED = {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "logit_bias": {"3": 2.0}}


@pytest.fixture(autouse=True, scope="module")
def server_arguments():
    before = server_args._global_server_args
    server_args._global_server_args = ARGUMENTS
    yield
    server_args._global_server_args = before


def worker():
    return FrozenKVMTPWorker.__new__(FrozenKVMTPWorker)


def drafting(*requests):
    made = batch(list(requests), draft_input(*range(5, 5 + len(requests))))
    made.tree_cache = SimpleNamespace(supports_swa=lambda: False)
    return made


class TestDraft:
    def test_without_the_fix_it_dies_of_none(self):
        step = drafting(request("a"))
        step.sampling_info = None
        with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'penalizer_orchestrator'"):
            worker().draft(step)
        step = drafting(request("a"))
        step.sampling_info.penalizer_orchestrator = None
        with pytest.raises(AttributeError, match="'NoneType' object has no attribute 'is_required'"):
            worker().draft(step)

    def test_lost_penalties_are_refused(self, attach):
        attach("off", "penalizer-none-safety")
        step = drafting(request("a"), request("b", repetition_penalty=1.5))
        step.sampling_info = None
        with pytest.raises(PenaltiesLost, match="a batch of 2 requests"):
            worker().draft(step)
        assert step.sampling_info is None

    def test_an_idle_step_needs_none(self, attach):
        attach("off", "penalizer-none-safety")
        step = drafting()
        step.forward_mode, step.sampling_info = ForwardMode.IDLE, None
        seen = []
        around_step(lambda worker, one: seen.append(one.sampling_info), worker(), step)
        assert seen == [None]


class TestStep:
    """What a step sees; `original` stands for the step."""

    def test_a_whole_batch_is_handed_on_as_it_is(self):
        step = drafting(request("a", repetition_penalty=1.5))
        info, penalizers = step.sampling_info, step.sampling_info.penalizer_orchestrator
        seen = around_step(lambda worker, one: one.sampling_info, worker(), step)
        assert seen is info is step.sampling_info
        assert seen.penalizer_orchestrator is penalizers

    def test_sampling_info_is_made_of_the_requests_and_stays(self):
        step = drafting(request("a"), request("b", **SAMPLED))
        wanted, step.sampling_info = step.sampling_info, None
        made = around_step(lambda worker, one: one.sampling_info, worker(), step)
        assert made is step.sampling_info
        for name in ("temperatures", "top_ps", "top_ks", "min_ps", "logit_bias"):
            assert torch.equal(getattr(made, name), getattr(wanted, name)), name
        assert (made.is_all_greedy, made.need_top_p_sampling) == (wanted.is_all_greedy, wanted.need_top_p_sampling)

    def test_penalizers_are_none_again_after_a_step_that_raises(self):
        step = drafting(request("a"))
        step.sampling_info = step.sampling_info.copy_for_forward()

        def dies(worker, one):
            assert isinstance(one.sampling_info.penalizer_orchestrator, SummedPenalties)
            raise ValueError("of another cause")

        with pytest.raises(ValueError, match="of another cause"):
            around_step(dies, worker(), step)
        assert step.sampling_info.penalizer_orchestrator is None


class TestCallsOnTheOrchestrator:
    """SGLang's own sampling_info calls the sums in the orchestrator's place."""

    PENALTIES = ({"frequency_penalty": 1.5}, {}, {"repetition_penalty": 1.5})

    def copied(self, *penalties):
        """Return a copy as overlap scheduling makes it, and the batch that it is of."""
        one = batch([request(str(i), **each) for i, each in enumerate(penalties)], verify_input())
        if one.sampling_info.penalizer_orchestrator.is_required:
            one.sampling_info.penalizer_orchestrator.cumulate_output_tokens(torch.full((len(penalties),), 3))
        step = drafting(*one.reqs)
        step.sampling_info = one.sampling_info.copy_for_forward()
        return one, step

    def filtered(self, one, keep):
        one.reqs = [one.reqs[index] for index in keep]
        one.sampling_info.filter_batch(keep, torch.tensor(keep))
        return one.sampling_info

    def logits(self, rows):
        return torch.linspace(-4, 4, rows * VOCABULARY).view(rows, VOCABULARY)

    def during(self, step, call):
        return around_step(lambda worker, one: call(one.sampling_info), worker(), step)

    def test_nothing_of_the_orchestrator_is_missing(self):
        one, _ = self.copied(*self.PENALTIES)
        bound = {"vocab_size", "device", "batch", "reqs"}  # of the batch that it is made from
        asked = {name for name in dir(one.sampling_info.penalizer_orchestrator) if not name.startswith("_")}
        assert asked - bound - set(dir(SummedPenalties)) == set()

    @pytest.mark.parametrize("keep", [[0, 2], [1], [2, 1], [0, 1, 2]])
    def test_a_filter_leaves_the_penalties_of_those_who_stay(self, keep):
        one, step = self.copied(*self.PENALTIES)
        kept = torch.tensor(keep)

        def verifies(info):
            smaller = copy.deepcopy(info)  # as EagleVerifyInput.verify does
            smaller.filter_batch(keep, kept)
            smaller.penalizer_orchestrator.apply(found, repeat=2)

        wanted, found = self.logits(2 * len(keep)), self.logits(2 * len(keep))
        self.during(step, verifies)
        self.filtered(one, keep).penalizer_orchestrator.apply(wanted, repeat=2)
        assert torch.equal(found, wanted)

    def test_a_filter_in_place_outlives_the_step(self):
        one, step = self.copied(*self.PENALTIES)
        keep = torch.tensor([2])
        self.during(step, lambda info: info.filter_batch([2], keep))
        wanted = self.filtered(one, [2]).copy_for_forward()
        assert torch.equal(step.sampling_info.acc_scaling_penalties, wanted.acc_scaling_penalties)
        assert step.sampling_info.acc_additive_penalties.shape == (1, VOCABULARY)

    def test_nobody_stays(self):
        _, step = self.copied(*self.PENALTIES)
        assert not self.during(step, lambda info: info.penalizer_orchestrator.filter(torch.tensor([])) or False)
        assert step.sampling_info.acc_additive_penalties is step.sampling_info.acc_scaling_penalties is None

    def test_a_sampler_applies_them_once(self):
        one, step = self.copied(*self.PENALTIES)
        wanted, found = self.logits(3), self.logits(3)
        one.sampling_info.penalizer_orchestrator.apply(wanted)
        self.during(step, lambda info: info.apply_logits_bias(found))
        assert torch.equal(found, wanted)
        after = self.logits(3)
        step.sampling_info.apply_logits_bias(after)
        assert torch.equal(after, wanted)

    def test_a_copy_within_the_step_has_the_same_sums(self):
        _, step = self.copied(*self.PENALTIES)
        wanted = step.sampling_info.acc_additive_penalties, step.sampling_info.acc_scaling_penalties
        inner = self.during(step, lambda info: info.copy_for_forward())
        assert all(map(torch.equal, (inner.acc_additive_penalties, inner.acc_scaling_penalties), wanted))

    @pytest.mark.parametrize(("mine", "theirs"), [({"min_new_tokens": 4}, {}), ({}, {"repetition_penalty": 1.5})])
    def test_sums_of_penalties_are_not_merged(self, mine, theirs):
        _, step = self.copied(mine)
        other, _ = self.copied(theirs)
        with pytest.raises(PenaltiesLost, match="summed up for one step"):
            self.during(step, lambda info: info.merge_batch(other.sampling_info))

    def test_an_orchestrator_does_not_take_sums_in(self):
        _, step = self.copied({"repetition_penalty": 1.5})
        other, _ = self.copied({})
        with pytest.raises(PenaltiesLost, match="summed up for one step"):
            self.during(step, other.sampling_info.merge_batch)

    def test_without_penalties_batches_are_merged(self):
        _, step = self.copied({}, {})
        other, third = self.copied({})
        self.during(step, lambda info: info.merge_batch(other.sampling_info))
        assert len(step.sampling_info) == 3
        self.during(third, other.sampling_info.merge_batch)
        assert len(other.sampling_info) == 2


@given(
    st.lists(
        st.sampled_from([{}, {"frequency_penalty": 1.5}, {"repetition_penalty": 1.5}, {"min_new_tokens": 4}]),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 4),
    st.integers(0, 2),
)
def test_summed_penalties_are_the_orchestrators(penalties, repeat, rounds):
    step = batch([request(str(i), **each) for i, each in enumerate(penalties)], verify_input())
    penalizers = step.sampling_info.penalizer_orchestrator
    for number in range(rounds):
        penalizers.cumulate_output_tokens(torch.full((len(penalties),), 3 + number))
    logits = torch.linspace(-4, 4, len(penalties) * repeat * VOCABULARY).view(-1, VOCABULARY)
    wanted, found = logits.clone(), logits.clone()
    if penalizers.is_required:
        penalizers.apply(wanted, repeat=repeat)
    summed = SummedPenalties(step.sampling_info.copy_for_forward())
    assert summed.is_required == penalizers.is_required
    summed.cumulate_output_tokens(torch.zeros(len(penalties), dtype=torch.int64))
    summed.apply(found, repeat=repeat)
    assert torch.equal(found, wanted)
