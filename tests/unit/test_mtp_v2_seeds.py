"""Where the next draft starts under spec v2: whose row of the target's hidden states, and which token."""

from types import SimpleNamespace

import pytest
import torch

from gemma4_runtime.mtp_v2.draft_worker import FrozenKVMTPDraftWorkerV2

# 0.5.14 and later have spec v2 themselves: mtp-v2 and what it brings are for 0.5.13.post1.
pytestmark = pytest.mark.releases("0.5.13.post1")

WIDTH, NODES = 6, 4


@pytest.fixture
def worker():
    """Return a worker without a model: seeds are gathers."""
    made = object.__new__(FrozenKVMTPDraftWorkerV2)
    made.topk, made.speculative_num_draft_tokens, made.device = 1, NODES, "cpu"
    made.model_config = SimpleNamespace(dtype=torch.bfloat16)
    return made


def rows(count):
    """Row i is i in every column."""
    return torch.arange(count, dtype=torch.float32)[:, None].expand(count, WIDTH).contiguous()


def prefill(lengths):
    mode = SimpleNamespace(is_idle=lambda: False)
    return SimpleNamespace(forward_mode=mode, extend_lens=lengths)


def first_column(seed):
    assert seed.hidden_states.shape == (len(seed.bonus_tokens), WIDTH)
    return seed.hidden_states[:, 0].tolist()


@pytest.mark.parametrize(
    ("lengths", "last"), [([5, 1, 3], [4, 5, 8]), ([7], [6]), ([1, 1], [0, 1]), ([2, 1], [1, 2]), ([1, 2], [0, 2])]
)
def test_after_a_prefill_it_is_each_prompts_last_row(worker, lengths, last):
    tokens = torch.arange(100, 100 + len(lengths), dtype=torch.int32)
    seed = worker.seed_after_prefill(prefill(lengths), tokens, rows(sum(lengths)))
    assert first_column(seed) == last
    assert (seed.bonus_tokens.tolist(), seed.bonus_tokens.dtype) == (tokens.tolist(), torch.int64)


def test_rows_of_last_tokens_alone_are_taken_as_they_are(worker):
    seed = worker.seed_after_prefill(prefill([5, 3]), torch.tensor([1, 2]), rows(2))
    assert first_column(seed) == [0, 1]


def test_after_a_verification_it_is_the_last_accepted_row_of_each_request(worker):
    accepted = torch.tensor([1, 4, 2], dtype=torch.int32)
    seed = worker.seed_after_verify(torch.tensor([7, 8, 9]), accepted, rows(3 * NODES))
    assert first_column(seed) == [0, NODES + 3, 2 * NODES + 1]
    assert seed.bonus_tokens.tolist() == [7, 8, 9]


def test_the_scheduler_can_join_both(worker):
    """It concatenates fields, so shapes behind the first and dtypes are the same."""
    one = worker.seed_after_prefill(prefill([3]), torch.tensor([5], dtype=torch.int32), rows(3))
    other = worker.seed_after_verify(torch.tensor([7]), torch.tensor([2]), rows(NODES).double())
    for name in ("bonus_tokens", "hidden_states", "topk_p", "topk_index"):
        first, second = getattr(one, name), getattr(other, name)
        assert (first.dtype, first.shape) == (second.dtype, second.shape), name
    one.merge_batch(other)
    assert one.bonus_tokens.tolist() == [5, 7]
