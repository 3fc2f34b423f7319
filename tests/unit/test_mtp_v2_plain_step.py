"""A step without drafts, as the target and the scheduler see it, without a model."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.managers.scheduler_components.metrics_reporter import SchedulerMetricsReporter
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardMode

from gemma4_runtime.mtp_v2.draft_policy import Verified
from gemma4_runtime.mtp_v2.plain_step import PlainStep, verified_by
from gemma4_runtime.mtp_v2.worker import FrozenKVMTPWorkerV2

# 0.5.14 and later have spec v2 themselves: mtp-v2 and what it brings are for 0.5.13.post1.
pytestmark = pytest.mark.releases("0.5.13.post1")

ROWS = torch.arange(1000, 1060).reshape(3, 20)


def run(batch):
    """Returns what the target was given, and the result."""
    seen = []

    def forward(given):
        seen.append(SimpleNamespace(**vars(given)))
        output = SimpleNamespace(next_token_logprobs=torch.tensor([-1.0, -2.0]), hidden_states=torch.zeros(2, 6))
        return SimpleNamespace(logits_output=output, next_token_ids=torch.tensor([8, 9]), can_run_cuda_graph=False)

    runner = SimpleNamespace(
        device="cpu",
        server_args=SimpleNamespace(disable_cuda_graph=False),
        req_to_token_pool=SimpleNamespace(req_to_token=ROWS.int()),
    )
    step = PlainStep(SimpleNamespace(model_runner=runner, forward_batch_generation=forward), 0)
    return step.run(batch), seen[0]


def batch(lengths_on_host=True, return_logprob=False):
    return SimpleNamespace(
        seq_lens=torch.tensor([5, 7]),
        seq_lens_cpu=torch.tensor([5, 7]) if lengths_on_host else None,
        seq_lens_sum=12,
        req_pool_indices=torch.tensor([2, 0]),
        spec_info=SimpleNamespace(bonus_tokens=torch.tensor([3, 4])),
        return_logprob=return_logprob,
    )


def test_the_target_decodes_each_requests_last_token_into_its_next_slot():
    _, seen = run(batch())
    assert seen.forward_mode is ForwardMode.DECODE
    assert seen.capture_hidden_mode is CaptureHiddenMode.FULL
    assert seen.spec_info is None, "attention would take it for a draft's"
    assert seen.input_ids.tolist() == [3, 4]
    assert (seen.out_cache_loc.tolist(), seen.out_cache_loc.dtype) == ([1045, 1007], torch.int64)
    assert (seen.seq_lens.tolist(), seen.seq_lens_cpu.tolist(), seen.seq_lens_sum) == ([6, 8], [6, 8], None)


def test_lengths_that_only_the_device_knows_stay_there():
    _, seen = run(batch(lengths_on_host=False))
    assert seen.seq_lens_cpu is None


def test_the_result_is_that_of_a_verification_of_one_token():
    asked = batch(return_logprob=True)
    before = asked.seq_lens
    result, _ = run(asked)
    assert before.tolist() == [5, 7], "another forward may still read them"
    assert (result.accept_lens.tolist(), result.accept_lens.dtype) == ([1, 1], torch.int32)
    assert result.speculative_num_draft_tokens == 1
    assert result.new_seq_lens.tolist() == [6, 8]
    assert result.logits_output.next_token_logprobs.tolist() == [[-1.0], [-2.0]]


def test_lengths_are_published_before_the_forward():
    """Where a backend asks for them on the host, it would wait for the forward's end otherwise."""
    told = []
    worker = object.__new__(FrozenKVMTPWorkerV2)
    output = SimpleNamespace(hidden_states=torch.ones(2, 6))
    result = SimpleNamespace(logits_output=output, next_token_ids=torch.tensor([8, 9]))
    worker._plain = SimpleNamespace(run=lambda batch: told.append("forward") or result)
    worker._draft_worker = SimpleNamespace(seed=lambda tokens, hidden: (tokens, hidden))
    made = worker._decode_without_drafts(batch(), lambda lengths: told.append(lengths.tolist()))
    assert told == [[6, 8], "forward"]
    tokens, hidden = made.next_draft_input
    assert tokens.tolist() == [8, 9]
    assert hidden.data_ptr() != output.hidden_states.data_ptr(), "a graph's next replay writes there"


def test_only_a_verification_says_something_of_drafts():
    taken = {"num_correct_drafts_per_req_cpu": [3, 0, 1]}
    assert verified_by(SimpleNamespace(speculative_num_draft_tokens=1, **taken)) is None
    assert verified_by(SimpleNamespace(speculative_num_draft_tokens=4, **taken)) == Verified(3, 7)


def test_sglangs_metrics_say_that_no_drafts_are_made():
    worker = object.__new__(FrozenKVMTPWorkerV2)
    worker._steps, worker._without_drafts, worker.speculative_num_draft_tokens = 3, False, 4
    reporter = SimpleNamespace(
        scheduler=SimpleNamespace(
            draft_worker=worker, server_args=SimpleNamespace(speculative_num_steps=3, speculative_num_draft_tokens=4)
        )
    )
    snapshot = SchedulerMetricsReporter._active_spec_config_snapshot
    assert snapshot(reporter)["num_steps"] == 3
    worker._without_drafts = True
    assert snapshot(reporter)["num_steps"] == 0
