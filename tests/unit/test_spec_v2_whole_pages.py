"""Slots under spec v2 on SGLang's own allocator and rows: whole pages at a time, and nothing asked for in between."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt import server_args
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from test_probe_batch_shapes import AHEAD, idle_input

from swa_pools import make_swa_allocator

# spec-v2-whole-pages is not ported.
pytestmark = pytest.mark.releases("0.5.13.post1")

HOST = ("host-alloc-kernels", "host-verify-slots")
PATCH = "spec-v2-whole-pages"
RESERVE = 16
"""Slots that SGLang keeps ahead of a request's tokens with AHEAD."""


class Server:
    """Requests that decode a token a step, as far as `prepare_for_decode` reads a batch.

    Attributes:
        asked: How many slots the allocator was asked for, call by call.
    """

    def __init__(self, page, width, lengths):
        self.allocator = make_swa_allocator(64 * page, 64 * page, page)
        self.pool = ReqToTokenPool(size=len(lengths), max_context_len=width, device="cpu", enable_memory_saver=False)
        self.asked = []
        entry = "alloc_extend" if page > 1 else "alloc"
        inner = getattr(self.allocator, entry)

        def counted(*args):
            self.asked.append(args[-1])
            return inner(*args)

        setattr(self.allocator, entry, counted)
        cache = SimpleNamespace(is_chunk_cache=lambda: True, token_to_kv_pool_allocator=self.allocator)
        self.requests = [
            SimpleNamespace(kv_committed_len=0, kv_allocated_len=0, decode_batch_idx=0, req_pool_idx=row)
            for row in range(len(lengths))
        ]
        self.batch = SimpleNamespace(
            maybe_evict_swa=lambda: None,
            batch_size=lambda: len(self.requests),
            sampling_info=SimpleNamespace(penalizer_orchestrator=SimpleNamespace(is_required=False)),
            token_to_kv_pool_allocator=self.allocator,
            req_to_token_pool=self.pool,
            req_pool_indices=torch.arange(len(lengths)),
            reqs=self.requests,
            tree_cache=cache,
            device="cpu",
        )
        for request, length in zip(self.requests, lengths, strict=True):
            request.kv_committed_len = length
        self.step()

    def step(self):
        """Returns the slots that SGLang made sure of before."""
        page = self.allocator.page_size
        sure = ScheduleBatch._new_tokens_required_next_decode_spec_v2(self.batch, self.requests, page)
        free = self.allocator.available_size()
        idle_input().prepare_for_decode(self.batch)
        assert free - self.allocator.available_size() == sure, "as many pages as SGLang had counted"
        for request in self.requests:
            held = self.pool.req_to_token[request.req_pool_idx, : request.kv_allocated_len]
            assert request.kv_allocated_len >= request.kv_committed_len - 1 + RESERVE
            assert (held > 0).all()
            assert held.unique().numel() == held.numel()
            assert (self.allocator.full_to_swa_index_mapping[held.long()] > 0).all()
        return sure


@pytest.fixture(autouse=True)
def server_arguments(monkeypatch):
    monkeypatch.setattr(
        server_args, "_global_server_args", SimpleNamespace(**vars(AHEAD), attention_backend="torch_native")
    )


@pytest.mark.parametrize("attached", [False, True])
def test_a_request_asks_for_slots_once_a_page(attach, attached):
    attach("off", *HOST, *([PATCH] if attached else []))
    server = Server(16, 300, [5, 20])
    for _ in range(48):
        server.step()
    # Two requests, three pages of 16 each; without the patch one slot each in every step.
    assert len([tokens for tokens in server.asked[1:] if tokens]) == (6 if attached else 48)
    assert [request.decode_batch_idx for request in server.requests] == [49, 49]
    assert [request.kv_committed_len for request in server.requests] == [54, 69]


def test_a_row_ends_before_its_last_page_does(attach):
    attach("off", *HOST, PATCH)
    server = Server(16, 60, [30])
    for _ in range(13):
        server.step()
    assert server.requests[0].kv_allocated_len == 60


def test_pages_of_one_token_are_given_one_by_one(attach):
    attach("off", *HOST, PATCH)
    server = Server(1, 60, [4])
    for _ in range(5):
        server.step()
    assert server.asked == [4 + RESERVE, 1, 1, 1, 1, 1]
