"""The page-table probe on SGLang's own trtllm_mha backend: eager builds, and where they write."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.attention.trtllm_mha_backend import TRTLLMMHAMetadata
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_runtime import steps
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.indices import owner, watch
from gemma4_runtime.probes import page_table
from trtllm_world import FULL, PAGE, SLIDING, STAND_INS, attention, batch, build, dispatch, fill, trtllm_backend

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture
def backend(swa_allocator):
    return trtllm_backend(swa_allocator)


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

    @pytest.mark.parametrize("ended", [False, True])
    def test_with_overlap_it_is_one_where_all_requests_of_the_step_go_on(self, attach, backend, swa_allocator, ended):
        dumps = attach("trap", "page-table", *STAND_INS)
        backend.kept_runner.server_args.disable_overlap_schedule = False
        fill(backend, swa_allocator, [100])
        swa_allocator.full_to_swa_index_mapping[backend.req_to_token[1, :80].to(torch.int64)] = 0
        counted = SimpleNamespace(req_pool_idx=1)
        request = SimpleNamespace(kv=counted, req_pool_idx=1, finished=lambda: ended)
        with steps.Running(steps.Step(3, (request,))), nullcontext() if ended else pytest.raises(TrappedViolation):
            build(backend, batch([100]))
        assert len(DumpStore(dumps).list()) == (not ended)

    # The release before reads the pool's rows, and not the backend's attribute.
    @pytest.mark.releases("0.5.23")
    def test_rows_that_are_a_copy_are_named(self, attach, backend, swa_allocator):
        dumps = attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33])
        backend.req_to_token = backend.req_to_token.clone().zero_()
        with pytest.raises(TrappedViolation):
            build(backend, batch([33]))
        assert read_dump(next(dumps.glob("*page-table*"))).manifest.scalars["rows_are_copied"] is True

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
        backend.kept_runner.req_to_token_pool = backend.req_to_token_pool
        with pytest.raises(TrappedViolation, match=r"page -1 of 161") as caught:
            build(backend, batch([33]))
        manifest = read_dump(caught.value.dump).manifest
        assert manifest.verdict == "negative"
        assert manifest.extents["rows_of_requests"] == backend.req_to_token.shape[0]

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

    @pytest.mark.releases("0.5.13.post1")  # 0.5.23 makes every table as wide as the longest context.
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

    def test_what_the_rows_have_for_the_tokens_that_are_written_is_in_the_dump(self, attach, backend, swa_allocator):
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [34, 20])
        backend.kept_runner.req_to_token_pool = SimpleNamespace(req_to_token=backend.req_to_token)
        backend.req_to_token[1, 33] = 0
        forward_batch = batch([34, 20], rows=[1, 2])
        forward_batch.out_cache_loc = torch.tensor([0, other := int(backend.req_to_token[2, 19])])
        with pytest.raises(TrappedViolation, match=r"slot 0 of 2576 in out_cache_loc") as caught:
            build(backend, forward_batch)
        assert read_dump(caught.value.dump).tensor("row_slots").tolist() == [[0], [other]]

    def test_a_frozen_draft_writes_nothing(self, attach, backend, swa_allocator):
        dumps = attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33])
        backend.kept_runner.is_draft_worker = True
        owner.remember_owner(backend, backend.kept_runner)
        backend.use_sliding_window_kv_pool = False
        build(backend, self.locations(backend, 10**6))
        assert DumpStore(dumps).list() == []
