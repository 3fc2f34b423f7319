"""The page-table probe on trtllm_mha under CUDA graphs: the host side of capture and replay."""

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.fixes.swa_state_swap import lock_step
from gemma4_runtime.indices import watch
from published import in_capture_mode
from trtllm_world import FULL, PAGE, SLIDING, STAND_INS, batch, dispatch, fill, trtllm_backend

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture
def backend(swa_allocator):
    return trtllm_backend(swa_allocator)


class TestGraphs:
    """The host side of CUDA graphs: tables are static buffers, capture dispatches layers, replay dispatches none."""

    def capture(self, backend, size, mode=ForwardMode.DECODE, tokens=1, new_slots=None):
        captured = batch([1] * size, mode, rows=[0] * size, tokens=tokens)
        captured.out_cache_loc = new_slots
        backend.init_forward_metadata_out_graph(captured, in_capture=True)
        with in_capture_mode():
            for layer_id in (SLIDING, FULL):
                dispatch(backend, layer_id, captured)

    @pytest.mark.parametrize("mode", [ForwardMode.DECODE, ForwardMode.TARGET_VERIFY])
    def test_replay_checks_the_static_tables(self, attach, backend, swa_allocator, mode):
        dumps = attach("trap", "page-table", *STAND_INS)
        tokens = 4 if mode.is_target_verify() else 1
        fill(backend, swa_allocator, [60, 100])
        backend.init_cuda_graph_state(4, 16)
        self.capture(backend, 4, mode, tokens)
        # Two live requests, two rows of padding: request 0, length 1, the null page.
        padded = batch([56, 96, 1, 1], mode, rows=[1, 2, 0, 0], tokens=tokens)
        backend.init_forward_metadata_out_graph(padded)
        assert DumpStore(dumps).list() == []
        rows = backend.req_to_token.clone()
        # The window has left column 0 of the longer request, so only the full table must hold a page there.
        backend.req_to_token[2, :16] = 0
        with pytest.raises(TrappedViolation, match=r"page 0 of 161 in page_table\[1, 0\]"):
            backend.init_forward_metadata_out_graph(padded)
        backend.req_to_token.copy_(rows)
        swa_allocator.full_to_swa_index_mapping[backend.req_to_token[2, 80].long()] = 65 * PAGE
        with pytest.raises(TrappedViolation, match=r"page 65 of 65 in swa_page_table\[1, 5\]") as caught:
            backend.init_forward_metadata_out_graph(padded)
        found = read_dump(caught.value.dump).manifest
        assert (found.graph.captured, found.graph.bucket) == (True, 4)
        assert found.forward_mode == mode.name

    def test_writes_in_a_graph(self, attach, backend, swa_allocator):
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [60])
        backend.init_cuda_graph_state(1, 4)
        static = torch.zeros(1, dtype=torch.int64)
        self.capture(backend, 1, new_slots=static)
        live = batch([60])
        # A replay's batch brings the list that SGLang has filled the static one from; the graph reads the static one.
        live.out_cache_loc = backend.req_to_token[1, 59:60].long()
        static.copy_(live.out_cache_loc)
        backend.init_forward_metadata_out_graph(live)
        static[0] = 161 * PAGE
        with pytest.raises(TrappedViolation, match="slot 2576 of 2576 in out_cache_loc"):
            backend.init_forward_metadata_out_graph(live)

    def test_a_replay_prepares_nothing_anew(self, attach, backend, swa_allocator, monkeypatch):
        attach("log", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [60])
        backend.init_cuda_graph_state(1, 4)
        self.capture(backend, 1, new_slots=torch.zeros(1, dtype=torch.int64))
        rows = torch.tensor([1])
        live = batch([60])
        live.req_pool_indices = rows
        backend.init_forward_metadata_out_graph(live)
        monkeypatch.setattr(watch, "Checker", None)
        # Each step brings a new list; the one that the graph reads is the capture's.
        live = batch([60])
        live.req_pool_indices, live.out_cache_loc = rows, backend.req_to_token[1, 59:60].long()
        backend.init_forward_metadata_out_graph(live)

    def test_untranslated_tables_are_seen_at_capture_and_stop_the_first_live_build(
        self, attach, backend, swa_allocator
    ):
        dumps = attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [60])
        backend._swa_kv_pool = None
        backend.init_cuda_graph_state(1, 4)
        self.capture(backend, 1)
        (entry,) = DumpStore(dumps).list()
        at_capture = read_dump(entry.path).manifest
        assert (at_capture.verdict, at_capture.action, at_capture.offence_count) == ("wrong_space", "logged", 0)
        with pytest.raises(TrappedViolation, match="full page ids on the swa buffer"):
            backend.init_forward_metadata_out_graph(batch([60]))

    def test_a_swapped_pool_makes_a_new_check(self, attach, backend, swa_allocator):
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [60])
        backend.init_cuda_graph_state(1, 4)
        self.capture(backend, 1)
        backend.init_forward_metadata_out_graph(batch([60]))
        backend.token_to_kv_pool = backend.token_to_kv_pool.full_kv_pool
        with pytest.raises(TrappedViolation, match="swa page ids on the full buffer"):
            backend.init_forward_metadata_out_graph(batch([60]))

    def test_lock_step_gives_a_graph_its_sliding_tables(self, attach, backend, swa_allocator):
        """F7: the page tables are sized although the backend was built on a pool without a sliding window."""
        dumps = attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [60])
        pool, backend._swa_kv_pool = backend.token_to_kv_pool, None
        with lock_step(backend, pool):
            backend.init_cuda_graph_state(1, 4)
            self.capture(backend, 1)
            backend.init_forward_metadata_out_graph(batch([60]))
        assert backend._swa_kv_pool is None
        assert DumpStore(dumps).list() == []
