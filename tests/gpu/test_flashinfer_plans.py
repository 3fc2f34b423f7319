"""The page-table probe on FlashInfer's own wrappers: what it finds in a plan, and what the kernel then reads.

SGLang 0.5.13.post1 refuses to serve Gemma-4 with attention_backend flashinfer, so there is no server to start: the
backend is SGLang's own, on pools of its own, with a decode kernel that runs.
"""

import pytest
import torch

from gemma4_dumps.reader import read_dump
from gemma4_runtime.errors import TrappedViolation
from slot_list_backends import FULL, PAGE, SLIDING, SWA_SLOTS, Runner, attention, batch, found_in, rows_of, slots_of

# What runs on a GPU alone has run with this release alone.
pytestmark = [pytest.mark.gpu, pytest.mark.releases("0.5.13.post1")]

HEAD_DIM, LENGTH = 64, 100


@pytest.fixture
def allocator():
    """160 full and 64 SWA pages of 16 tokens on the device, 2 + 1 layers."""
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    pool = SWAKVPool(
        size=160 * PAGE,
        size_swa=64 * PAGE,
        page_size=PAGE,
        dtype=torch.float16,
        head_num=2,
        head_dim=HEAD_DIM,
        swa_attention_layer_ids=[0, 1],
        full_attention_layer_ids=[2],
        enable_kvcache_transpose=False,
        device="cuda",
    )
    return SWATokenToKVPoolAllocator(160 * PAGE, 64 * PAGE, PAGE, torch.float16, "cuda", pool, need_sort=False)


@pytest.fixture
def make(allocator, monkeypatch):
    """Return what makes the backend, with request 1 of LENGTH tokens: after `attach`, so hooks see its constructor."""
    from sglang.srt.layers.attention import flashinfer_backend

    monkeypatch.setattr(flashinfer_backend, "get_attention_tp_size", lambda: 1)

    def build():
        with torch.device("cuda"):
            runner = Runner(allocator, head_dim=HEAD_DIM)
        made = flashinfer_backend.FlashInferAttnBackend(runner)
        made.kept_runner = runner
        none, all_tokens = torch.tensor([0]), torch.tensor([LENGTH])
        new = allocator.alloc_extend(
            none.cuda(), none, all_tokens.cuda(), all_tokens, torch.tensor([-1], device="cuda"), LENGTH
        )
        rows_of(made)[1, :LENGTH] = new.to(torch.int32)
        return made

    return build


def decode_batch():
    with torch.device("cuda"):
        made = batch([LENGTH])
    made.seq_lens_cpu = made.seq_lens.cpu()
    return made


def decode(backend, forward_batch):
    query = torch.zeros(1, 2 * HEAD_DIM, dtype=torch.float16, device="cuda")
    for layer_id in (SLIDING, FULL):
        layer = attention(layer_id, HEAD_DIM)
        assert backend.forward_decode(query, None, None, layer, forward_batch, False).shape == (1, 2 * HEAD_DIM)
    torch.cuda.synchronize()


def test_a_clean_plan_is_silent(attach, make):
    dumps = attach("trap", "page-table")
    backend, forward_batch = make(), decode_batch()
    backend.init_forward_metadata(forward_batch)
    decode(backend, forward_batch)
    assert found_in(dumps) == []


def test_a_planted_slot_is_trapped_before_the_kernel(attach, make, allocator):
    attach("trap", "page-table")
    backend = make()
    allocator.full_to_swa_index_mapping[slots_of(backend, 1, LENGTH - 1)] = SWA_SLOTS
    with pytest.raises(TrappedViolation, match=r"slot 1040 of 1040 in window_kv_indices\[0, 31\]") as got:
        backend.init_forward_metadata(decode_batch())
    found = read_dump(got.value.dump).manifest
    assert (found.backend, found.verdict, found.layer.id) == ("flashinfer", "out_of_range", SLIDING)


def test_what_is_contained_never_reaches_the_kernel(attach, make, allocator):
    attach("contain", "page-table")
    backend, forward_batch = make(), decode_batch()
    # Far beyond any allocation: read, it would be an illegal address.
    allocator.full_to_swa_index_mapping[slots_of(backend, 1, LENGTH - 1)] = 2**30
    with pytest.raises(TrappedViolation, match="outside a scheduler step"):
        backend.init_forward_metadata(forward_batch)
    # The containment raised at the end of SGLang's own work, when the plan was complete.
    decode(backend, forward_batch)
    assert int(backend.decode_wrappers[0]._paged_kv_indices_buf[31]) == 0
