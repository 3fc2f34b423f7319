"""The page-table probe on SGLang's own trtllm_mha backend: eager dispatch, CUDA-graph tables, provenance."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.attention.trtllm_mha_backend import TRTLLMHAAttnBackend
from sglang.srt.model_executor import cuda_graph_runner
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.fixes.swa_state_swap import lock_step
from gemma4_runtime.probes import page_table

PAGE = 16
SLIDING, FULL = 0, 2


class Runner:
    """The three things of a ModelRunner that the probe reads."""

    def __init__(self):
        self.is_draft_worker = False
        self.forward_pass_id = 41
        self.server_args = SimpleNamespace(disable_overlap_schedule=True)


@pytest.fixture
def backend(swa_allocator):
    """A TRTLLMHAAttnBackend with real pools. Its constructor wants a whole engine, so its fields are set here."""
    made = object.__new__(TRTLLMHAAttnBackend)
    rows = torch.zeros(5, 256, dtype=torch.int32)
    fields = {
        "token_to_kv_pool": swa_allocator.get_kvcache(),
        "_swa_kv_pool": swa_allocator.get_kvcache(),
        "use_sliding_window_kv_pool": True,
        "req_to_token": rows,
        "req_to_token_pool": SimpleNamespace(req_to_token=rows),
        "page_size": PAGE,
        "device": "cpu",
        "max_context_len": 256,
        "speculative_num_draft_tokens": 4,
        "speculative_step_id": 0,
        "workspace_buffer": None,
        "q_data_type": torch.float32,
        "data_type": torch.float32,
        "is_xqa_impl": False,
        "target_verify_metadata": {},
    }
    # What the probe keeps from the constructor's model runner.
    runner = Runner()
    page_table.remember_role(None, made, runner)
    made.kept_runner = runner
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def fill(backend, allocator, lengths):
    """Give request i+1 `lengths[i]` tokens. Request 0 is SGLang's padding row."""
    for row, length in enumerate(lengths, start=1):
        lens = [torch.tensor([x]) for x in (0, 0, length, length, -1)]
        slots = allocator.alloc_extend(*lens, length)
        backend.req_to_token[row, :length] = slots.to(torch.int32)


def batch(lengths, mode=ForwardMode.DECODE, rows=None, tokens=1):
    lens = torch.tensor(lengths)
    return SimpleNamespace(
        seq_lens=lens,
        seq_lens_cpu=lens,
        batch_size=len(lengths),
        forward_mode=mode,
        spec_info=None,
        encoder_lens=None,
        out_cache_loc=None,
        input_ids=torch.zeros(len(lengths) * tokens, dtype=torch.int64),
        positions=torch.zeros(len(lengths) * tokens, dtype=torch.int64),
        req_pool_indices=torch.tensor(rows or list(range(1, len(lengths) + 1))),
    )


def layer(layer_id):
    return SimpleNamespace(
        layer_id=layer_id,
        sliding_window_size=31 if layer_id != FULL else -1,
        tp_q_head_num=2,
        tp_k_head_num=2,
        tp_v_head_num=2,
        head_dim=8,
        k_scale=None,
        v_scale=None,
        scaling=1.0,
    )


def dispatch(backend, layer_id, forward_batch):
    query = torch.zeros(forward_batch.input_ids.shape[0], 2, 8)
    method = backend.forward_decode if forward_batch.forward_mode.is_decode() else backend.forward_extend
    return method(query, None, None, layer(layer_id), forward_batch, save_kv_cache=False)


@pytest.fixture
def long_full_pool(swa_allocator):
    """Use up 70 full-pool pages whose SWA pages are free again, as eviction leaves them: ids now differ by pool."""
    for _ in range(7):
        lens = [torch.tensor([x]) for x in (0, 0, 160, 160, -1)]
        swa_allocator.free_swa(swa_allocator.alloc_extend(*lens, 160))


@pytest.mark.usefixtures("long_full_pool")
class TestEager:
    def test_clean_tables_are_silent(self, attach, backend, swa_allocator):
        dumps = attach("trap", "page-table", "host-paged-attention", "host-alloc-kernels")
        fill(backend, swa_allocator, [33, 100])
        for mode, lengths in ((ForwardMode.DECODE, [33, 100]), (ForwardMode.TARGET_VERIFY, [32, 99])):
            forward_batch = batch(lengths, mode)
            backend.init_forward_metadata(forward_batch)
            for layer_id in (SLIDING, 1, FULL):
                dispatch(backend, layer_id, forward_batch)
        assert DumpStore(dumps).list() == []

    def test_pages_that_the_window_has_left_may_be_zero(self, attach, backend, swa_allocator):
        dumps = attach("trap", "page-table", "host-paged-attention", "host-alloc-kernels")
        fill(backend, swa_allocator, [100])
        swa_allocator.free_swa(backend.req_to_token[1, :48].to(torch.int64))
        forward_batch = batch([100])
        backend.init_forward_metadata(forward_batch)
        assert backend.forward_metadata.swa_page_table[0, :3].tolist() == [0, 0, 0]
        dispatch(backend, SLIDING, forward_batch)
        assert DumpStore(dumps).list() == []

    def test_a_zero_inside_the_window_is_a_finding(self, attach, backend, swa_allocator):
        dumps = attach("trap", "page-table", "host-paged-attention", "host-alloc-kernels")
        fill(backend, swa_allocator, [100])
        # Window 31: the query at 99 sees keys from 68 on, so column 4 (64 to 79) must be real and column 3 need not.
        swa_allocator.full_to_swa_index_mapping[backend.req_to_token[1, :80].to(torch.int64)] = 0
        forward_batch = batch([100])
        backend.init_forward_metadata(forward_batch)
        with pytest.raises(TrappedViolation, match=r"page 0 of 65 in swa_page_table\[0, 4\]"):
            dispatch(backend, SLIDING, forward_batch)
        backend.kept_runner.server_args.disable_overlap_schedule = False
        backend.init_forward_metadata(forward_batch)
        dispatch(backend, SLIDING, forward_batch)
        assert len(DumpStore(dumps).list()) == 1

    @pytest.mark.parametrize("layer_id", [SLIDING, FULL])
    def test_padded_rows_carry_request_0_and_are_legal(self, attach, backend, swa_allocator, layer_id):
        """DP padding and SGLang's own warm-up batches: request slot 0, length 1, the null page."""
        dumps = attach("trap", "page-table", "host-paged-attention", "host-alloc-kernels")
        fill(backend, swa_allocator, [33])
        forward_batch = batch([33, 1, 1], rows=[1, 0, 0])
        backend.init_forward_metadata(forward_batch)
        dispatch(backend, layer_id, forward_batch)
        assert DumpStore(dumps).list() == []

    def test_a_real_request_of_one_token_is_not_padding(self, attach, backend, swa_allocator):
        attach("trap", "page-table", "host-paged-attention", "host-alloc-kernels")
        forward_batch = batch([1])
        backend.init_forward_metadata(forward_batch)
        with pytest.raises(TrappedViolation, match="page 0 of 161"):
            dispatch(backend, FULL, forward_batch)

    @pytest.mark.parametrize("draft", [False, True])
    def test_the_dump_names_role_and_step(self, attach, backend, swa_allocator, draft):
        attach("trap", "page-table", "host-paged-attention", "host-alloc-kernels")
        backend.kept_runner.is_draft_worker = draft
        page_table.remember_role(None, backend, backend.kept_runner)
        forward_batch = batch([1])
        backend.init_forward_metadata(forward_batch)
        with pytest.raises(TrappedViolation) as caught:
            dispatch(backend, FULL, forward_batch)
        found = read_dump(caught.value.dump).manifest
        assert (found.role, found.step) == ("draft" if draft else "target", 41)

    def test_lost_evidence_neither_replaces_the_trap_nor_stops_a_log(self, attach, backend, swa_allocator):
        attach("trap", "page-table", "host-paged-attention", "host-alloc-kernels")
        forward_batch = batch([1])
        backend.init_forward_metadata(forward_batch)
        forward_batch.forward_mode = SimpleNamespace(is_decode=lambda: True)
        with pytest.raises(TrappedViolation, match="evidence lost: AttributeError"):
            dispatch(backend, FULL, forward_batch)

    def test_full_ids_on_the_sliding_buffer_are_trapped_with_provenance(self, attach, backend, swa_allocator):
        attach("trap", "page-table", "host-paged-attention", "host-alloc-kernels")
        fill(backend, swa_allocator, [33, 100])
        backend._swa_kv_pool = None
        forward_batch = batch([33, 100])
        backend.init_forward_metadata(forward_batch)
        dispatch(backend, FULL, forward_batch)
        with pytest.raises(TrappedViolation, match=r"page 7\d of 65 in page_table\[0, 0\]") as caught:
            dispatch(backend, SLIDING, forward_batch)
        dump = read_dump(caught.value.dump)
        found = dump.manifest
        assert (found.rule, found.verdict, found.forward_mode) == ("page-table-bounds", "out_of_range", "DECODE")
        assert (found.provenance.table_space, found.provenance.buffer_space) == ("full", "swa")
        assert (found.layer.id, found.layer.type, found.pool_kind) == (SLIDING, "sliding", "swa")
        assert found.extents["pages_in_buffer"] == found.extents["pages_swa_pool"] == 65
        assert found.extents["pages_full_pool"] == 161
        assert {offence.request_slot for offence in found.offences} == {1, 2}
        # The dump says what the table should have held: exactly what a translated build gives.
        backend._swa_kv_pool = backend.token_to_kv_pool
        backend.init_forward_metadata(forward_batch)
        live = backend.forward_metadata.swa_page_table
        for row, columns in ((0, 3), (1, 7)):
            assert dump.tensor("translated_page_table")[row, :columns].tolist() == live[row, :columns].tolist()

    def test_a_route_is_checked_once_per_metadata_build(self, attach, backend, swa_allocator):
        attach("trap", "page-table", "host-paged-attention", "host-alloc-kernels")
        fill(backend, swa_allocator, [33])
        forward_batch = batch([33])
        backend.init_forward_metadata(forward_batch)
        dispatch(backend, SLIDING, forward_batch)
        backend.forward_metadata.swa_page_table[0, 0] = 64
        dispatch(backend, 1, forward_batch)
        backend.init_forward_metadata(forward_batch)
        backend.forward_metadata.swa_page_table[0, 0] = 65
        with pytest.raises(TrappedViolation, match="layer 1"):
            dispatch(backend, 1, forward_batch)

    def test_a_null_page_in_a_live_full_column(self, attach, backend, swa_allocator):
        attach("trap", "page-table", "host-paged-attention", "host-alloc-kernels")
        fill(backend, swa_allocator, [33])
        backend.req_to_token[1, 16:32] = 0
        forward_batch = batch([33])
        backend.init_forward_metadata(forward_batch)
        with pytest.raises(TrappedViolation, match=r"page 0 of 161 in page_table\[0, 1\]"):
            dispatch(backend, FULL, forward_batch)

    def test_prefill_is_checked_too(self, attach, backend, swa_allocator):
        attach("trap", "page-table", "host-paged-attention", "host-alloc-kernels")
        fill(backend, swa_allocator, [33])
        forward_batch = batch([33], ForwardMode.EXTEND, tokens=33)
        forward_batch.extend_prefix_lens_cpu = [0]
        backend.init_forward_metadata(forward_batch)
        dispatch(backend, FULL, forward_batch)
        backend.forward_metadata.swa_page_table[0, 2] = 65
        with pytest.raises(TrappedViolation, match=r"page 65 of 65 in swa_page_table\[0, 2\]") as caught:
            dispatch(backend, SLIDING, forward_batch)
        assert read_dump(caught.value.dump).manifest.forward_mode == "EXTEND"

    def test_log_mode_goes_on(self, attach, backend, swa_allocator):
        dumps = attach("log", "page-table", "host-paged-attention", "host-alloc-kernels")
        fill(backend, swa_allocator, [33])
        forward_batch = batch([33])
        backend.init_forward_metadata(forward_batch)
        backend.forward_metadata.page_table[0, 0] = 0
        assert dispatch(backend, FULL, forward_batch).shape == (1, 16)
        (entry,) = DumpStore(dumps).list()
        assert read_dump(entry.path).manifest.action == "logged"


@pytest.mark.usefixtures("long_full_pool")
class TestGraphs:
    """The host side of CUDA graphs: tables are static buffers, capture dispatches layers, replay dispatches none."""

    def capture(self, backend, size, monkeypatch, mode=ForwardMode.DECODE, tokens=1):
        captured = batch([1] * size, mode, rows=[0] * size, tokens=tokens)
        monkeypatch.setattr(cuda_graph_runner, "is_capture_mode", True)
        backend.init_forward_metadata_out_graph(captured, in_capture=True)
        for layer_id in (SLIDING, FULL):
            dispatch(backend, layer_id, captured)
        monkeypatch.setattr(cuda_graph_runner, "is_capture_mode", False)

    @pytest.mark.parametrize("mode", [ForwardMode.DECODE, ForwardMode.TARGET_VERIFY])
    def test_replay_checks_the_captured_routes(self, attach, backend, swa_allocator, monkeypatch, mode):
        dumps = attach("trap", "page-table", "host-paged-attention", "host-alloc-kernels")
        tokens = 4 if mode.is_target_verify() else 1
        fill(backend, swa_allocator, [60, 100])
        backend.init_cuda_graph_state(4, 16)
        self.capture(backend, 4, monkeypatch, mode, tokens)
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

    def test_untranslated_graph_tables_are_trapped_before_replay(self, attach, backend, swa_allocator, monkeypatch):
        attach("trap", "page-table", "host-paged-attention", "host-alloc-kernels")
        fill(backend, swa_allocator, [60])
        backend._swa_kv_pool = None
        backend.init_cuda_graph_state(1, 4)
        self.capture(backend, 1, monkeypatch)
        with pytest.raises(TrappedViolation, match="full page ids on the swa buffer"):
            backend.init_forward_metadata_out_graph(batch([60]))

    def test_lock_step_gives_a_graph_its_sliding_tables(self, attach, backend, swa_allocator, monkeypatch):
        """F7: the page tables are sized although the backend was built on a pool without a sliding window."""
        dumps = attach("trap", "page-table", "host-paged-attention", "host-alloc-kernels")
        fill(backend, swa_allocator, [60])
        pool, backend._swa_kv_pool = backend.token_to_kv_pool, None
        with lock_step(backend, pool):
            backend.init_cuda_graph_state(1, 4)
            self.capture(backend, 1, monkeypatch)
            backend.init_forward_metadata_out_graph(batch([60]))
        assert backend._swa_kv_pool is None
        assert DumpStore(dumps).list() == []
