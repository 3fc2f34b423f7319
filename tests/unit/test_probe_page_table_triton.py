"""The page-table probe on SGLang's own Triton backend: eager lists, provenance, writes, gathers, contain."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from gemma4_dumps.reader import read_dump
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.indices import owner
from gemma4_runtime.indices.triton import triton_build
from gemma4_runtime.probes import page_table_triton
from slot_list_backends import (
    ATTACHED,
    DECODE_USES,
    FULL,
    FULL_SLOTS,
    PAGE,
    SLIDING,
    SWA_SLOTS,
    WINDOW,
    attention,
    batch,
    extend,
    fill,
    found_in,
    slots_of,
    triton_backends,
    uses_of,
)

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture
def make(swa_allocator, monkeypatch):
    with triton_backends(swa_allocator, monkeypatch) as maker:
        yield maker


class TestEager:
    def test_clean_lists_are_silent(self, attach, make):
        dumps = attach("trap", *ATTACHED)
        backend = make()
        fill(backend, [33, 100])
        decode = batch([33, 100], locations=torch.cat([slots_of(backend, 1, 32), slots_of(backend, 2, 99)]))
        backend.init_forward_metadata(decode)
        new = torch.cat([slots_of(backend, 1, *range(29, 33)), slots_of(backend, 2, *range(96, 100))])
        backend.init_forward_metadata(batch([29, 96], ForwardMode.TARGET_VERIFY, locations=new))
        backend.init_forward_metadata(extend(backend, 16, 17))
        assert found_in(dumps) == []

    def test_it_follows_layers_and_pools(self, attach, make):
        attach("trap", *ATTACHED)
        backend = make()
        fill(backend, [100])
        forward_batch = batch([100], locations=slots_of(backend, 1, 99))
        backend.init_forward_metadata(forward_batch)
        build = triton_build(backend, forward_batch, "here", False, forward_batch.out_cache_loc)
        assert uses_of(build) == DECODE_USES
        assert build.array("window_kv_indices").values.shape == (WINDOW,)
        assert build.page_size == PAGE

    def test_a_negative_slot(self, attach, make):
        attach("trap", *ATTACHED)
        backend = make()
        fill(backend, [100])
        backend.req_to_token[1, 3] = -1
        with pytest.raises(TrappedViolation, match="slot -1") as got:
            backend.init_forward_metadata(batch([100]))
        assert read_dump(got.value.dump).manifest.verdict == "negative"

    def test_a_null_slot_in_a_live_row(self, attach, make):
        attach("trap", *ATTACHED)
        backend = make()
        fill(backend, [100])
        backend.req_to_token[1, 3] = 0
        with pytest.raises(TrappedViolation, match=r"slot 0 of 2576 in kv_indices\[0, 3\]") as got:
            backend.init_forward_metadata(batch([100]))
        assert read_dump(got.value.dump).manifest.verdict == "null_page_live"

    def test_padded_rows_carry_request_0_and_are_legal(self, attach, make):
        dumps = attach("trap", *ATTACHED)
        backend = make()
        fill(backend, [33])
        backend.init_forward_metadata(batch([33, 1, 1], rows=[1, 0, 0]))
        assert found_in(dumps) == []

    def test_a_prefix_is_checked_in_an_extend(self, attach, make):
        attach("trap", *ATTACHED)
        backend = make()
        fill(backend, [60])
        forward_batch = extend(backend, 48, 12)
        backend.req_to_token[1, 5] = FULL_SLOTS + 7
        with pytest.raises(TrappedViolation, match=r"in kv_indices\[0, 5\]") as got:
            backend.init_forward_metadata(forward_batch)
        assert read_dump(got.value.dump).manifest.forward_mode == "EXTEND"

    def test_a_corrupt_indptr(self, attach, make):
        attach("trap", *ATTACHED)
        backend = make()
        fill(backend, [33, 40])
        backend.init_forward_metadata(batch([33, 40]))
        # Afterwards: SGLang's own kernel would write to where it points.
        backend.kv_indptr[0] = 5000
        with pytest.raises(TrappedViolation, match="kv_indices") as got:
            page_table_triton.after_metadata(None, backend, batch([33, 40]))
        assert read_dump(got.value.dump).manifest.verdict == "table_too_narrow"

    def test_a_step_of_a_multi_step_draft_is_left_alone(self, attach, make):
        dumps = attach("trap", *ATTACHED)
        backend = make(is_draft_worker=True)
        forward_batch = batch([33])
        forward_batch.spec_info = SimpleNamespace(
            kv_indptr=torch.tensor([0, 2], dtype=torch.int32),
            kv_indices=torch.tensor([10**6, -4]),
            window_kv_indices=None,
        )
        backend.init_forward_metadata(forward_batch)
        assert found_in(dumps) == []


class TestProvenance:
    def test_a_window_list_that_was_not_translated(self, attach, make):
        """The pool was swapped after the build: full ids in the list, but the buffer is the SWA pool's."""
        attach("trap", *ATTACHED)
        backend = make()
        pool = backend.token_to_kv_pool
        fill(backend, [33])
        backend.token_to_kv_pool = pool.full_kv_pool
        backend.kept_runner.model = torch.nn.ModuleList([attention(SLIDING)])
        backend.use_sliding_window_kv_pool = False
        forward_batch = batch([33])
        backend.init_forward_metadata(forward_batch)
        backend.token_to_kv_pool = pool
        with pytest.raises(TrappedViolation, match=r"slot \d+ of 1040 in window_kv_indices\[0, 0\]") as got:
            backend.forward_decode(torch.zeros(1, 2, 8), None, None, attention(SLIDING), forward_batch, False)
        found = read_dump(got.value.dump).manifest
        assert (found.provenance.table_space, found.provenance.buffer_space) == ("full", "swa")

    def test_a_pool_without_the_layer(self, attach, make):
        attach("trap", *ATTACHED)
        backend = make()
        fill(backend, [33])
        backend.kept_runner.model.append(attention(7))
        with pytest.raises(TrappedViolation, match=r"layer 7 .* on no buffer"):
            backend.init_forward_metadata(batch([33]))


class TestNewSlots:
    def test_a_write_beyond_the_full_buffer(self, attach, make):
        attach("trap", *ATTACHED)
        backend = make()
        fill(backend, [33])
        # SGLang's own translation of such a slot would index beyond the map.
        backend.use_sliding_window_kv_pool = False
        backend.kept_runner.model = torch.nn.ModuleList([attention(FULL)])
        with pytest.raises(TrappedViolation, match=rf"slot {FULL_SLOTS} of {FULL_SLOTS} in out_cache_loc") as got:
            backend.init_forward_metadata(batch([33], locations=torch.tensor([FULL_SLOTS])))
        assert read_dump(got.value.dump).manifest.verdict == "write_out_of_range"

    def test_a_write_beyond_the_swa_buffer(self, attach, make, mapping):
        attach("trap", *ATTACHED)
        backend = make()
        fill(backend, [60])
        forward_batch = extend(backend, 48, 12)
        mapping[slots_of(backend, 1, 59)] = SWA_SLOTS
        with pytest.raises(
            TrappedViolation, match=r"in swa_out_cache_loc\[0, 11\], target layer 0 .* written to the swa"
        ):
            backend.init_forward_metadata(forward_batch)

    def test_the_null_slot_is_for_padding_only(self, attach, make):
        attach("trap", *ATTACHED)
        backend = make()
        fill(backend, [33])
        new = torch.cat([slots_of(backend, 1, 32), torch.zeros(1, dtype=torch.int64)])
        backend.init_forward_metadata(batch([33, 1], rows=[1, 0], locations=new))
        with pytest.raises(TrappedViolation, match=r"slot 0 of 2576 in out_cache_loc\[1, 0\]"):
            backend.init_forward_metadata(batch([33, 33], rows=[1, 1], locations=new))

    def test_a_frozen_draft_writes_nothing(self, attach, make):
        dumps = attach("trap", *ATTACHED)
        backend = make(is_draft_worker=True)
        fill(backend, [33])
        backend.use_sliding_window_kv_pool = False
        backend.init_forward_metadata(batch([33], locations=torch.tensor([10**6])))
        assert found_in(dumps) == []

    @pytest.mark.parametrize(("layer_id", "name"), [(FULL, "out_cache_loc"), (SLIDING, "swa_out_cache_loc")])
    def test_a_layer_without_keys_gathers_them_where_nothing_writes(self, attach, make, mapping, layer_id, name):
        dumps = attach("trap", *ATTACHED)
        backend = make(is_draft_worker=True)
        fill(backend, [60])
        forward_batch, layer = extend(backend, 48, 12), attention(layer_id)
        slot = slots_of(backend, 1, 53)
        mapping[slot] = SWA_SLOTS
        if layer_id == FULL:
            backend.use_sliding_window_kv_pool = False
            forward_batch.out_cache_loc[5] = FULL_SLOTS
        backend.init_forward_metadata(forward_batch)
        assert found_in(dumps) == []
        with pytest.raises(TrappedViolation, match=rf"in {name}\[0, 5\], draft layer {layer_id}") as got:
            backend.forward_extend(torch.zeros(12, 2, 8), None, None, layer, forward_batch, False)
        assert read_dump(got.value.dump).manifest.verdict == "out_of_range"

    def test_a_clean_gather_is_silent(self, attach, make):
        dumps = attach("trap", *ATTACHED)
        backend = make(is_draft_worker=True)
        fill(backend, [18])
        forward_batch = extend(backend, 16, 2)
        backend.init_forward_metadata(forward_batch)
        for layer_id in (SLIDING, FULL):
            query = torch.zeros(2, 2, 8)
            assert backend.forward_extend(query, None, None, attention(layer_id), forward_batch, False).shape == (
                2,
                2,
                8,
            )
        assert found_in(dumps) == []


class TestContain:
    """Outside a scheduler step a result is read at once, and no single request can be ended: the process ends."""

    def test_bad_entries_become_the_null_slot_and_the_others_stay(self, attach, make, mapping):
        attach("contain", *ATTACHED)
        backend = make()
        fill(backend, [33, 100])
        mapping[slots_of(backend, 2, 99)] = SWA_SLOTS + 5
        with pytest.raises(TrappedViolation, match="outside a scheduler step") as got:
            backend.init_forward_metadata(batch([33, 100]))
        metadata = backend.forward_metadata
        window = metadata.window_kv_indices[metadata.window_kv_indptr[1] : metadata.window_kv_indptr[2]]
        assert window[30] == 0
        assert bool((window[:30] != 0).all())
        assert read_dump(got.value.dump).manifest.action == "contained"

    def test_the_allocators_list_is_left_alone(self, attach, make):
        attach("contain", *ATTACHED)
        backend = make()
        fill(backend, [33])
        # SGLang's own translation of such a slot would index beyond the map.
        backend.use_sliding_window_kv_pool = False
        backend.kept_runner.model = torch.nn.ModuleList([attention(FULL)])
        forward_batch = batch([33], locations=(locations := torch.tensor([FULL_SLOTS])))
        with pytest.raises(TrappedViolation, match="write_out_of_range"):
            backend.init_forward_metadata(forward_batch)
        assert forward_batch.out_cache_loc.tolist() == [0]
        assert locations.tolist() == [FULL_SLOTS]


def test_a_drafts_rows_are_its_requests_candidates(attach, make):
    attach("trap", *ATTACHED)
    backend = make(is_draft_worker=True, topk=2)
    fill(backend, [33])
    forward_batch = batch([33, 33], rows=[1, 1])
    backend.init_forward_metadata(forward_batch)
    assert triton_build(backend, forward_batch, "here", False, forward_batch.out_cache_loc).rows_per_request == 2
    target = make(topk=2)
    fill(target, [33])
    target.init_forward_metadata(batch([33]))
    assert triton_build(target, batch([33]), "here", False, None).rows_per_request == 1


def test_a_constructed_backend_knows_its_owner(attach, make):
    attach("trap", *ATTACHED)
    assert owner.role_of(make(is_draft_worker=True)) == "draft"
