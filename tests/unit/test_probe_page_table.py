"""The page-table probe on SGLang's own trtllm_mha backend: eager builds, CUDA-graph tables, writes, provenance."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.attention.trtllm_mha_backend import TRTLLMHAAttnBackend, TRTLLMMHAMetadata
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.model_executor import cuda_graph_runner
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.fixes.swa_state_swap import lock_step
from gemma4_runtime.indices import owner, watch
from gemma4_runtime.probes import page_table
from gemma4_triage.replay.damage import Kind
from gemma4_triage.replay.options import ReplayOptions
from gemma4_triage.replay.run import replay

PAGE = 16
SLIDING, FULL = 0, 2


class Runner:
    """What the probe reads of a ModelRunner: its model has two sliding layers and a full one."""

    def __init__(self):
        self.is_draft_worker = False
        self.forward_pass_id = 41
        self.server_args = SimpleNamespace(disable_overlap_schedule=True)
        self.spec_algorithm = SpeculativeAlgorithm.FROZEN_KV_MTP
        self.model = torch.nn.ModuleList(attention(layer_id) for layer_id in (SLIDING, 1, FULL))


def attention(layer_id):
    window = -1 if layer_id == FULL else 31
    return RadixAttention(2, 8, 1.0, 2, layer_id, sliding_window_size=window)


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
    owner.remember_owner(made, runner)
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


def dispatch(backend, layer_id, forward_batch):
    query = torch.zeros(forward_batch.input_ids.shape[0], 2, 8)
    method = backend.forward_decode if forward_batch.forward_mode.is_decode() else backend.forward_extend
    return method(query, None, None, attention(layer_id), forward_batch, save_kv_cache=False)


@pytest.fixture
def long_full_pool(swa_allocator):
    """Use up 70 full-pool pages whose SWA pages are free again, as eviction leaves them: ids now differ by pool."""
    for _ in range(7):
        lens = [torch.tensor([x]) for x in (0, 0, 160, 160, -1)]
        swa_allocator.free_swa(swa_allocator.alloc_extend(*lens, 160))


STAND_INS = ("host-paged-attention", "host-alloc-kernels")


def build(backend, forward_batch):
    backend.init_forward_metadata(forward_batch)


@pytest.mark.usefixtures("long_full_pool")
class TestEager:
    def test_clean_tables_are_silent(self, attach, backend, swa_allocator):
        dumps = attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33, 100])
        for mode, lengths in ((ForwardMode.DECODE, [33, 100]), (ForwardMode.TARGET_VERIFY, [32, 99])):
            forward_batch = batch(lengths, mode)
            build(backend, forward_batch)
            for layer_id in (SLIDING, 1, FULL):
                dispatch(backend, layer_id, forward_batch)
        assert DumpStore(dumps).list() == []

    def test_an_empty_batch_is_silent(self, attach, backend):
        dumps = attach("trap", "page-table", *STAND_INS)
        backend.forward_metadata = TRTLLMMHAMetadata(
            cache_seqlens_int32=torch.zeros(0, dtype=torch.int32), page_table=torch.zeros(0, 4, dtype=torch.int32)
        )
        page_table.after_metadata(None, backend, batch([]))
        assert DumpStore(dumps).list() == []

    def test_pages_that_the_window_has_left_may_be_zero(self, attach, backend, swa_allocator):
        dumps = attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [100])
        swa_allocator.free_swa(backend.req_to_token[1, :48].to(torch.int64))
        build(backend, batch([100]))
        assert backend.forward_metadata.swa_page_table[0, :3].tolist() == [0, 0, 0]
        assert DumpStore(dumps).list() == []

    def test_a_zero_inside_the_window_is_a_finding(self, attach, backend, swa_allocator):
        dumps = attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [100])
        # Window 31: the query at 99 sees keys from 68 on, so column 4 (64 to 79) must be real and column 3 need not.
        swa_allocator.full_to_swa_index_mapping[backend.req_to_token[1, :80].to(torch.int64)] = 0
        with pytest.raises(TrappedViolation, match=r"page 0 of 65 in swa_page_table\[0, 4\]"):
            build(backend, batch([100]))
        # With overlap the request may have ended meanwhile.
        backend.kept_runner.server_args.disable_overlap_schedule = False
        build(backend, batch([100]))
        assert len(DumpStore(dumps).list()) == 1

    def test_padded_rows_carry_request_0_and_are_legal(self, attach, backend, swa_allocator):
        """DP padding and SGLang's own warm-up batches: request slot 0, length 1, the null page."""
        dumps = attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33])
        build(backend, batch([33, 1, 1], rows=[1, 0, 0]))
        assert DumpStore(dumps).list() == []

    def test_a_real_request_of_one_token_is_not_padding(self, attach, backend, swa_allocator):
        attach("trap", "page-table", *STAND_INS)
        with pytest.raises(TrappedViolation, match="page 0 of 161"):
            build(backend, batch([1]))

    @pytest.mark.parametrize("draft", [False, True])
    def test_the_dump_names_role_layer_and_step(self, attach, backend, swa_allocator, draft):
        attach("trap", "page-table", *STAND_INS)
        backend.kept_runner.is_draft_worker = draft
        owner.remember_owner(backend, backend.kept_runner)
        with pytest.raises(TrappedViolation) as caught:
            build(backend, batch([1]))
        found = read_dump(caught.value.dump).manifest
        assert (found.role, found.step, found.layer.id) == ("draft" if draft else "target", 41, FULL)

    def test_lost_evidence_does_not_replace_the_trap(self, attach, backend, swa_allocator):
        attach("trap", "page-table", *STAND_INS)
        del backend.kept_runner.forward_pass_id
        with pytest.raises(TrappedViolation, match="evidence lost: AttributeError"):
            build(backend, batch([1]))

    def test_a_null_page_in_a_live_full_column(self, attach, backend, swa_allocator):
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33])
        backend.req_to_token[1, 16:32] = 0
        with pytest.raises(TrappedViolation, match=r"page 0 of 161 in page_table\[0, 1\]"):
            build(backend, batch([33]))

    def test_a_negative_page(self, attach, backend, swa_allocator):
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33])
        backend.req_to_token[1, 16] = -16
        backend._swa_kv_pool = None
        backend.kept_runner.model = torch.nn.ModuleList([attention(FULL)])
        with pytest.raises(TrappedViolation, match=r"page -1 of 161") as caught:
            build(backend, batch([33]))
        assert read_dump(caught.value.dump).manifest.verdict == "negative"

    def test_prefill_is_checked_too(self, attach, backend, swa_allocator):
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33])
        swa_allocator.full_to_swa_index_mapping[backend.req_to_token[1, 32].long()] = 65 * PAGE
        forward_batch = batch([33], ForwardMode.EXTEND, tokens=33)
        forward_batch.extend_prefix_lens_cpu = [0]
        forward_batch.extend_seq_lens_cpu = [33]
        with pytest.raises(TrappedViolation, match=r"page 65 of 65 in swa_page_table\[0, 2\]") as caught:
            build(backend, forward_batch)
        assert read_dump(caught.value.dump).manifest.forward_mode == "EXTEND"

    def test_a_table_that_ends_before_its_row(self, attach, backend, swa_allocator):
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [100])
        forward_batch = batch([100])
        # A host copy of the lengths that lags: the kernel reads by the device's.
        forward_batch.seq_lens_cpu = torch.tensor([60])
        with pytest.raises(TrappedViolation, match="needs 7 columns of 4") as caught:
            build(backend, forward_batch)
        assert read_dump(caught.value.dump).manifest.verdict == "table_too_narrow"

    @pytest.mark.parametrize("mode", ["log", "contain"])
    def test_a_defect_of_ours_is_named_and_stops_no_server(self, attach, backend, swa_allocator, caplog, mode):
        dumps = attach(mode, "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33])
        watch._defects.clear()
        backend.kept_runner.model = "no module"
        for _ in range(3):
            build(backend, batch([33]))
            assert dispatch(backend, FULL, batch([33])).shape == (1, 16)
        assert caplog.text.count("UNCHECKED") == 1
        assert DumpStore(dumps).list() == []
        attach("trap", "page-table", *STAND_INS)
        with pytest.raises(AttributeError):
            build(backend, batch([33]))

    def test_log_mode_goes_on(self, attach, backend, swa_allocator):
        dumps = attach("log", "page-table", *STAND_INS)
        forward_batch = batch([1])
        build(backend, forward_batch)
        assert dispatch(backend, FULL, forward_batch).shape == (1, 16)
        found = [read_dump(entry.path).manifest for entry in DumpStore(dumps).list()]
        assert {(one.action, one.layer.id) for one in found} == {("logged", FULL), ("logged", SLIDING)}


@pytest.mark.usefixtures("long_full_pool")
class TestProvenance:
    def test_full_ids_on_the_sliding_buffer(self, attach, backend, swa_allocator):
        """The ids have left the SWA buffer already: bounds and provenance both show it."""
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33, 100])
        backend._swa_kv_pool = None
        with pytest.raises(TrappedViolation, match=r"page 7\d of 65 in page_table\[0, 0\]") as caught:
            build(backend, batch([33, 100]))
        dump = read_dump(caught.value.dump)
        found = dump.manifest
        assert (found.rule, found.verdict, found.forward_mode) == ("page-table-bounds", "out_of_range", "DECODE")
        assert (found.provenance.table_space, found.provenance.buffer_space) == ("full", "swa")
        assert "translation missing" in found.provenance.explanation
        assert (found.layer.id, found.layer.type, found.pool_kind) == (SLIDING, "sliding", "swa")
        assert found.extents["pages_in_buffer"] == found.extents["pages_swa_pool"] == 65
        assert found.extents["pages_full_pool"] == 161
        assert {offence.request_slot for offence in found.offences} == {1, 2}
        # The dump says what the table should have held: exactly what a translated build gives.
        backend._swa_kv_pool = backend.token_to_kv_pool
        build(backend, batch([33, 100]))
        live = backend.forward_metadata.swa_page_table
        for row, columns in ((0, 3), (1, 7)):
            assert dump.tensor("translated_page_table")[row, :columns].tolist() == live[row, :columns].tolist()

    def test_in_range_but_of_another_pool(self, attach, backend, swa_allocator):
        attach("trap", "page-table", *STAND_INS)
        swa_allocator.clear()
        fill(backend, swa_allocator, [33])
        backend._swa_kv_pool = None
        with pytest.raises(
            TrappedViolation, match=r"page_table\[0, 0\] = 1, .*full page ids on the swa buffer"
        ) as caught:
            build(backend, batch([33]))
        found = read_dump(caught.value.dump).manifest
        (offence,) = found.offences
        assert (found.verdict, offence.value, offence.request_slot) == ("wrong_space", 1, 1)
        assert "translation missing" in found.provenance.explanation

    def test_a_full_layer_read_through_the_swa_map(self, attach, backend, swa_allocator, monkeypatch):
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33])
        monkeypatch.setattr(backend, "_get_layer_page_table", lambda *_: backend.forward_metadata.swa_page_table)
        with pytest.raises(TrappedViolation, match="swa page ids on the full buffer") as caught:
            build(backend, batch([33]))
        assert read_dump(caught.value.dump).manifest.verdict == "wrong_space"

    def test_a_pool_without_the_layer(self, attach, backend, swa_allocator):
        """The hybrid defect: the leaf keeps a pool that the model's layers were never bound to."""
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33])
        backend.kept_runner.model.append(attention(7))
        with pytest.raises(TrappedViolation, match=r"layer 7 .* on no buffer") as caught:
            build(backend, batch([33]))
        assert "has no layer 7" in read_dump(caught.value.dump).manifest.provenance.explanation

    def test_the_dump_says_what_a_replay_needs(self, attach, backend, swa_allocator):
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33, 100])
        backend._swa_kv_pool = None
        with pytest.raises(TrappedViolation) as caught:
            build(backend, batch([33, 100]))
        dump = read_dump(caught.value.dump)
        scalars = dump.manifest.scalars
        assert (scalars["q_heads"], scalars["kv_heads"], scalars["head_dim"], scalars["kv_dtype"]) == (
            2,
            2,
            8,
            "float32",
        )
        assert (scalars["window_left"], scalars["scaling"]) == (31, 1.0)
        replayed = replay(dump, ReplayOptions())
        assert replayed.call.geometry.assumed == ()
        assert replayed.worst is Kind.OUT_OF_RANGE
        assert not replayed.reads_right

    def test_a_bad_translated_entry_comes_with_the_right_one(self, attach, backend, swa_allocator):
        """Row 1 of the SWA table went wrong after SGLang had made it: the dump translates the full one again."""
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33, 100])
        build(backend, batch([33, 100]))
        right = backend.forward_metadata.swa_page_table[1, :7].tolist()
        backend.forward_metadata.swa_page_table[1, 6] = 65
        with pytest.raises(TrappedViolation, match=r"page 65 of 65 in swa_page_table\[1, 6\]") as caught:
            page_table.after_metadata(None, backend, batch([33, 100]))
        dump = read_dump(caught.value.dump)
        assert dump.tensor("translated_page_table")[1, :7].tolist() == right
        replayed = replay(dump, ReplayOptions())
        assert [(damage.row, damage.outside) for damage in replayed.damages] == [(1, 1)]
        assert replayed.unknown_intentions == 0

    def test_a_pool_swapped_between_build_and_dispatch(self, attach, backend, swa_allocator):
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33])
        forward_batch = batch([33])
        build(backend, forward_batch)
        backend.token_to_kv_pool = backend.token_to_kv_pool.full_kv_pool
        with pytest.raises(TrappedViolation, match="swa page ids on the full buffer"):
            dispatch(backend, SLIDING, forward_batch)

    def test_a_draft_with_a_pool_of_its_own_uses_full_ids(self, attach, backend, swa_allocator):
        dumps = attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33])
        backend.kept_runner.is_draft_worker, backend._swa_kv_pool = True, None
        backend.kept_runner.model = torch.nn.ModuleList([attention(0)])
        backend.use_sliding_window_kv_pool, backend.token_to_kv_pool = False, backend.token_to_kv_pool.full_kv_pool
        owner.remember_owner(backend, backend.kept_runner)
        build(backend, batch([33]))
        assert DumpStore(dumps).list() == []


@pytest.mark.usefixtures("long_full_pool")
class TestWrites:
    def locations(self, backend, *slots):
        forward_batch = batch([33] * len(slots), rows=[1] * len(slots))
        forward_batch.out_cache_loc = torch.tensor(slots)
        return forward_batch

    def test_new_slots_are_silent(self, attach, backend, swa_allocator):
        dumps = attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33])
        build(backend, self.locations(backend, int(backend.req_to_token[1, 32]), 160 * PAGE + PAGE - 1))
        assert DumpStore(dumps).list() == []

    def test_beyond_the_full_buffer(self, attach, backend, swa_allocator):
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33])
        backend._swa_kv_pool, backend.use_sliding_window_kv_pool = None, False
        backend.kept_runner.model = torch.nn.ModuleList([attention(FULL)])
        with pytest.raises(TrappedViolation, match=r"slot 2576 of 2576 in out_cache_loc\[0, 0\]") as caught:
            build(backend, self.locations(backend, 161 * PAGE))
        assert read_dump(caught.value.dump).manifest.verdict == "write_out_of_range"

    def test_beyond_the_swa_buffer(self, attach, backend, swa_allocator):
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33])
        slot = int(backend.req_to_token[1, 32])
        forward_batch = self.locations(backend, slot)
        swa_allocator.full_to_swa_index_mapping[slot] = 65 * PAGE
        # Lengths that end before the slot: the read table is clean, only the write is not.
        forward_batch.seq_lens = forward_batch.seq_lens_cpu = torch.tensor([32])
        with pytest.raises(TrappedViolation, match=r"slot 1040 of 1040 in swa_out_cache_loc"):
            build(backend, forward_batch)

    def test_the_null_slot_is_for_padding_only(self, attach, backend, swa_allocator):
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33])
        with pytest.raises(TrappedViolation, match=r"slot 0 of 2576 in out_cache_loc\[1, 0\]"):
            build(backend, self.locations(backend, int(backend.req_to_token[1, 32]), 0))

    def test_a_frozen_draft_writes_nothing(self, attach, backend, swa_allocator):
        dumps = attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33])
        backend.kept_runner.is_draft_worker = True
        owner.remember_owner(backend, backend.kept_runner)
        backend.use_sliding_window_kv_pool = False
        build(backend, self.locations(backend, 10**6))
        assert DumpStore(dumps).list() == []


@pytest.mark.usefixtures("long_full_pool")
class TestContain:
    """Outside a scheduler step a result is read at once, and no single request can be ended: the process ends."""

    def test_bad_entries_become_the_null_page_and_the_others_stay(self, attach, backend, swa_allocator):
        attach("contain", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33, 100])
        swa_allocator.full_to_swa_index_mapping[backend.req_to_token[2, 80].long()] = 70 * PAGE
        with pytest.raises(TrappedViolation, match="outside a scheduler step") as caught:
            build(backend, batch([33, 100]))
        assert backend.forward_metadata.swa_page_table[1, 5] == 0
        dump = read_dump(caught.value.dump)
        (offence,) = dump.manifest.offences
        assert (offence.row, offence.column, offence.value) == (1, 5, 70)
        assert (dump.manifest.mode, dump.manifest.action) == ("contain", "contained")
        assert dump.tensor("swa_page_table")[1, 4] != 0

    def test_the_dump_says_what_the_map_would_have_made_of_it(self, attach, backend, swa_allocator):
        attach("contain", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33])
        page = int(backend.req_to_token[1, 0]) // PAGE
        translated = int(swa_allocator.full_to_swa_index_mapping[page * PAGE]) // PAGE
        backend._swa_kv_pool = None
        with pytest.raises(TrappedViolation, match="out_of_range") as caught:
            build(backend, batch([33]))
        dump = read_dump(caught.value.dump)
        assert f"made it page {translated} of 65" in dump.manifest.provenance.explanation
        assert (dump.tensor("page_table")[0, 0], dump.tensor("translated_page_table")[0, 0]) == (0, translated)

    def test_the_allocators_list_is_left_alone(self, attach, backend, swa_allocator):
        attach("contain", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33])
        forward_batch = batch([33])
        forward_batch.out_cache_loc = locations = torch.tensor([170 * PAGE])
        backend.use_sliding_window_kv_pool = False
        with pytest.raises(TrappedViolation, match="write_out_of_range"):
            build(backend, forward_batch)
        assert forward_batch.out_cache_loc.tolist() == [0]
        assert locations.tolist() == [170 * PAGE]

    def test_one_is_trap_when_eager_and_contain_in_a_graph(self, attach, backend, swa_allocator):
        attach("1", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [60])
        backend.init_cuda_graph_state(1, 4)
        backend.init_forward_metadata_out_graph(batch([1], rows=[0]), in_capture=True)
        backend.req_to_token[1, 16:32] = 0
        for start, action in (
            (backend.init_forward_metadata, "trapped"),
            (backend.init_forward_metadata_out_graph, "contained"),
        ):
            with pytest.raises(TrappedViolation, match="page_table") as caught:
                start(batch([60]))
            assert read_dump(caught.value.dump).manifest.action == action


@pytest.mark.usefixtures("long_full_pool")
class TestGraphs:
    """The host side of CUDA graphs: tables are static buffers, capture dispatches layers, replay dispatches none."""

    def capture(self, backend, size, monkeypatch, mode=ForwardMode.DECODE, tokens=1, new_slots=None):
        captured = batch([1] * size, mode, rows=[0] * size, tokens=tokens)
        captured.out_cache_loc = new_slots
        backend.init_forward_metadata_out_graph(captured, in_capture=True)
        monkeypatch.setattr(cuda_graph_runner, "is_capture_mode", True)
        for layer_id in (SLIDING, FULL):
            dispatch(backend, layer_id, captured)
        monkeypatch.setattr(cuda_graph_runner, "is_capture_mode", False)

    @pytest.mark.parametrize("mode", [ForwardMode.DECODE, ForwardMode.TARGET_VERIFY])
    def test_replay_checks_the_static_tables(self, attach, backend, swa_allocator, monkeypatch, mode):
        dumps = attach("trap", "page-table", *STAND_INS)
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

    def test_writes_in_a_graph(self, attach, backend, swa_allocator, monkeypatch):
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [60])
        backend.init_cuda_graph_state(1, 4)
        static = torch.zeros(1, dtype=torch.int64)
        self.capture(backend, 1, monkeypatch, new_slots=static)
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
        self.capture(backend, 1, monkeypatch, new_slots=torch.zeros(1, dtype=torch.int64))
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
        self, attach, backend, swa_allocator, monkeypatch
    ):
        dumps = attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [60])
        backend._swa_kv_pool = None
        backend.init_cuda_graph_state(1, 4)
        self.capture(backend, 1, monkeypatch)
        (entry,) = DumpStore(dumps).list()
        at_capture = read_dump(entry.path).manifest
        assert (at_capture.verdict, at_capture.action, at_capture.offence_count) == ("wrong_space", "logged", 0)
        with pytest.raises(TrappedViolation, match="full page ids on the swa buffer"):
            backend.init_forward_metadata_out_graph(batch([60]))

    def test_a_swapped_pool_makes_a_new_check(self, attach, backend, swa_allocator, monkeypatch):
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [60])
        backend.init_cuda_graph_state(1, 4)
        self.capture(backend, 1, monkeypatch)
        backend.init_forward_metadata_out_graph(batch([60]))
        backend.token_to_kv_pool = backend.token_to_kv_pool.full_kv_pool
        with pytest.raises(TrappedViolation, match="swa page ids on the full buffer"):
            backend.init_forward_metadata_out_graph(batch([60]))

    def test_lock_step_gives_a_graph_its_sliding_tables(self, attach, backend, swa_allocator, monkeypatch):
        """F7: the page tables are sized although the backend was built on a pool without a sliding window."""
        dumps = attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [60])
        pool, backend._swa_kv_pool = backend.token_to_kv_pool, None
        with lock_step(backend, pool):
            backend.init_cuda_graph_state(1, 4)
            self.capture(backend, 1, monkeypatch)
            backend.init_forward_metadata_out_graph(batch([60]))
        assert backend._swa_kv_pool is None
        assert DumpStore(dumps).list() == []
