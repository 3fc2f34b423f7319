"""The draft batch's out_cache_loc: None, or zeros where data-parallel padding copies a tensor of the batch's size.

That the engine dies without the fix is shown in tests/engine/test_repro_corpus.py.
"""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.speculative.frozen_kv_mtp_worker import FrozenKVMTPWorker

# 0.5.15 and later have it: speculative/frozen_kv_mtp_worker_v2.py.
pytestmark = pytest.mark.releases("0.5.13.post1")


def expand(batch):
    worker = object.__new__(FrozenKVMTPWorker)
    worker.topk = 1
    worker._expand_for_topk_draft(batch)
    return batch.out_cache_loc


def batch(**more):
    return SimpleNamespace(batch_size=3, out_cache_loc=torch.arange(29), **more)


def test_sglang_leaves_it_as_long_as_the_targets():
    assert len(expand(batch(global_num_tokens_cpu=None))) == 29


def test_the_fix_drops_it(attach):
    attach("off", "eager-out-cache-loc")
    assert expand(batch(global_num_tokens_cpu=None)) is None
    assert expand(SimpleNamespace(batch_size=3, out_cache_loc=None)) is None


def test_under_dp_padding_it_is_zeros_of_the_batchs_size(attach):
    attach("off", "eager-out-cache-loc")
    assert expand(batch(global_num_tokens_cpu=[3, 5])).tolist() == [0, 0, 0]
