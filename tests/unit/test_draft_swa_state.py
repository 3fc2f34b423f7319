"""Regression tests of feature rows F6 and F7, on SGLang's own trtllm_mha backend and pools.

F6: the draft backend's SWA state follows the pool that is in force: eager, at capture, at replay, on a hybrid's leaf.
F7: a draft whose own pool has no sliding window still gets the static sliding-window table of its graphs.

A draft as FROZEN_KV_MTP makes it: its own pool is a dummy of 64 tokens, its allocator is the target's.
"""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.attention.trtllm_mha_backend import TRTLLMHAAttnBackend
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.speculative import frozen_kv_mtp_utils
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from trtllm_world import (
    FULL,
    PAGE,
    SLIDING,
    STAND_INS,
    attention,
    batch,
    build,
    fill,
    hybrid_of,
    replay,
    trtllm_backend,
)

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

FIX, FAULT = "swa-state-swap", "swa-state-stale"
TABLES = ("swa_page_table", "swa_page_table_draft_decode")
LENGTHS = [60, 100]


@pytest.fixture
def draft(swa_allocator):
    """make(): a draft's backend, whose SWA state SGLang resolves as its constructor does."""

    def make():
        made = trtllm_backend(swa_allocator)
        made.token_to_kv_pool = MHATokenToKVPool(64, PAGE, torch.float32, 2, 8, 1, "cpu", False)
        made.use_sliding_window_kv_pool = False
        made._swa_kv_pool = TRTLLMHAAttnBackend._resolve_swa_kv_pool(
            SimpleNamespace(
                token_to_kv_pool=made.token_to_kv_pool,
                token_to_kv_pool_allocator=swa_allocator,
                is_draft_worker=True,
                spec_algorithm=SpeculativeAlgorithm.FROZEN_KV_MTP,
            )
        )
        return made

    return make


@pytest.fixture
def hybrid(draft):
    leaf = draft()
    with hybrid_of(leaf.token_to_kv_pool, draft(), leaf) as made:
        yield made


@pytest.fixture
def in_target(swa_allocator):
    """Return SGLang's own swap of the draft's pool for the target's, of (batch, backend), as the worker calls it."""
    context = SimpleNamespace(target_token_to_kv_pool=swa_allocator.get_kvcache())
    return lambda forward_batch, backend: frozen_kv_mtp_utils.frozen_kv_target_view(forward_batch, context, backend)


def draft_batch(lengths, rows=None):
    made = batch(lengths, rows=rows)
    made.spec_info = SimpleNamespace()
    return made


def assert_translated(backend, allocator, lengths=LENGTHS):
    """Assert that live pages of a sliding layer are its tokens' SWA pages, and a full layer's the full pages."""
    tables = {layer_id: backend._get_layer_page_table(attention(layer_id), None) for layer_id in (SLIDING, FULL)}
    for row, length in enumerate(lengths):
        slots = backend.req_to_token[row + 1, 0:length:PAGE].long()
        translated = allocator.full_to_swa_index_mapping[slots] // PAGE
        assert (translated > 0).all()
        assert tables[FULL][row, : len(slots)].tolist() == (slots // PAGE).tolist()
        assert tables[SLIDING][row, : len(slots)].tolist() == translated.tolist()
        assert tables[SLIDING][row].tolist() != tables[FULL][row].tolist()


class TestBuffer:
    """F7."""

    def test_it_is_there_though_the_drafts_own_pool_has_no_window(self, draft):
        backend = draft()
        backend.init_cuda_graph_state(4, 16)
        static = [backend.decode_cuda_graph_metadata[name] for name in TABLES]
        static.append(backend.target_verify_metadata["swa_page_table"])
        assert [tuple(table.shape) for table in static] == [(4, 16)] * 3
        # Three buffers, not one: a draft's replay must not overwrite a verify's.
        assert len({table.data_ptr() for table in static}) == 3

    def test_the_seed_bug_is_that_it_is_missing(self, attach, draft):
        attach("off", FAULT)
        backend = draft()
        backend.init_cuda_graph_state(4, 16)
        assert [backend.decode_cuda_graph_metadata[name] for name in TABLES] == [None, None]

    def test_a_model_without_a_window_has_none(self, draft):
        backend = draft()
        backend._swa_kv_pool = None
        backend.init_cuda_graph_state(4, 16)
        assert [backend.decode_cuda_graph_metadata[name] for name in TABLES] == [None, None]

    @pytest.mark.parametrize("make", [batch, draft_batch], ids=["decode", "draft"])
    def test_capture_binds_it_and_replays_refill_it_in_place(self, attach, draft, swa_allocator, in_target, make):
        attach("off", FIX, *STAND_INS)
        backend = draft()
        fill(backend, swa_allocator, LENGTHS)
        with in_target(make([1, 1], rows=[0, 0]), backend):
            backend.init_cuda_graph_state(2, 2)
            backend.init_forward_metadata_out_graph(make([1, 1], rows=[0, 0]), in_capture=True)
            captured = backend.forward_metadata.swa_page_table.data_ptr()
        # A graph goes by that address: each replay finds its own pages there.
        for lengths in (LENGTHS, [40, 70], LENGTHS):
            forward_batch = make(lengths)
            with in_target(forward_batch, backend):
                replay(backend, forward_batch)
                assert backend.forward_metadata.swa_page_table.data_ptr() == captured
                assert_translated(backend, swa_allocator, lengths)


class TestLockStep:
    """F6."""

    def test_eager(self, attach, draft, swa_allocator, in_target):
        attach("off", FIX, *STAND_INS)
        backend = draft()
        fill(backend, swa_allocator, LENGTHS)
        forward_batch = batch(LENGTHS)
        with in_target(forward_batch, backend):
            build(backend, forward_batch)
            assert_translated(backend, swa_allocator)

    @pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
    def test_a_stale_state_is_put_right_for_the_swap(self, attach, draft, swa_allocator, in_target, graph):
        """The seed bug is in force, so the backend was made without an SWA state."""
        attach("off", FIX, FAULT, *STAND_INS)
        backend = draft()
        assert backend._swa_kv_pool is None
        fill(backend, swa_allocator, LENGTHS)
        self.build(backend, in_target, graph, backend)
        assert_translated_after(backend, swa_allocator)
        assert backend._swa_kv_pool is None

    @pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
    def test_without_the_fix_it_stays_stale(self, attach, draft, swa_allocator, in_target, graph):
        attach("off", FAULT, *STAND_INS)
        backend = draft()
        fill(backend, swa_allocator, LENGTHS)
        self.build(backend, in_target, graph, backend)
        assert backend.forward_metadata.swa_page_table is None

    @pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
    def test_on_the_leaf_of_a_hybrid(self, attach, hybrid, swa_allocator, in_target, graph):
        attach("off", FIX, FAULT, *STAND_INS)
        leaf = hybrid.decode_backend
        leaf._swa_kv_pool = None
        fill(leaf, swa_allocator, LENGTHS)
        own = leaf.token_to_kv_pool
        self.build(hybrid, in_target, graph, leaf)
        assert_translated_after(leaf, swa_allocator)
        assert (leaf.token_to_kv_pool, leaf._swa_kv_pool) == (own, None)

    @pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
    def test_without_the_fix_the_leaf_reads_the_dummy(self, attach, hybrid, swa_allocator, in_target, graph):
        attach("off", *STAND_INS)
        leaf = hybrid.decode_backend
        fill(leaf, swa_allocator, LENGTHS)
        forward_batch = batch(LENGTHS)
        with in_target(forward_batch, hybrid):
            if graph:
                leaf.init_cuda_graph_state(2, 2)
            with pytest.raises(IndexError):
                leaf.token_to_kv_pool.get_kv_buffer(FULL)

    def build(self, backend, in_target, graph, leaf):
        """Metadata of LENGTHS on `leaf`, inside the swap of `backend`; what it made is kept for the check after it."""
        forward_batch = batch(LENGTHS)
        with in_target(forward_batch, backend):
            if graph:
                leaf.init_cuda_graph_state(2, 2)
                leaf.init_forward_metadata_out_graph(batch([1, 1], rows=[0, 0]), in_capture=True)
                replay(leaf, forward_batch)
            else:
                build(leaf, forward_batch)


def assert_translated_after(backend, allocator):
    """Assert the same outside the swap: the tables are what the build has left."""
    stale, backend._swa_kv_pool = backend._swa_kv_pool, allocator.get_kvcache()
    assert_translated(backend, allocator)
    backend._swa_kv_pool = stale
