"""The page-table probe on trtllm_mha: ids of another pool, whatever their values, and pools without the layer."""

import pytest
import torch

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.indices import owner
from gemma4_runtime.indices.buffers import buffer_of, extents
from gemma4_runtime.probes import page_table
from gemma4_triage.replay.damage import Kind
from gemma4_triage.replay.options import ReplayOptions
from gemma4_triage.replay.run import replay
from slot_list_backends import FULL, PAGE
from trtllm_world import SLIDING, STAND_INS, attention, batch, build, dispatch, fill, trtllm_backend

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture
def backend(swa_allocator):
    return trtllm_backend(swa_allocator)


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

    def test_a_choice_that_goes_by_the_batch_is_asked_with_it(self, attach, backend, swa_allocator, monkeypatch):
        """SGLang hands the batch on with the layer: a release that reads it there must find one."""
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33])
        choose = backend._get_layer_page_table

        def by_mode(layer, forward_batch):
            assert forward_batch.forward_mode.is_decode()
            return choose(layer, forward_batch)

        monkeypatch.setattr(backend, "_get_layer_page_table", by_mode)
        build(backend, made := batch([33]))
        dispatch(backend, SLIDING, made)

    @pytest.mark.parametrize("space", ["full", "swa"])
    def test_a_buffer_that_lies_by_pages_is_as_long(self, attach, backend, swa_allocator, space):
        """0.5.23 lays it out as [pages, heads, tokens of a page, head_dim] with SGLANG_USE_HND_KVCACHE."""
        pool = swa_allocator.get_kvcache()
        bounds = [buffer_of(pool, layer, "target") for layer in (SLIDING, FULL)]
        of_pages = extents(pool, PAGE)
        for inner in (pool.swa_kv_pool, pool.full_kv_pool):
            for buffers in (inner.k_buffer, inner.v_buffer):
                buffers[:] = [one.unflatten(0, (-1, PAGE)).transpose(1, 2).contiguous() for one in buffers]
        assert [buffer_of(pool, layer, "target") for layer in (SLIDING, FULL)] == bounds
        assert extents(pool, PAGE) == of_pages
        attach("trap", "page-table", *STAND_INS)
        fill(backend, swa_allocator, [33, 100])
        build(backend, batch([33, 100]))
        table = getattr(backend.forward_metadata, "page_table" if space == "full" else "swa_page_table")
        table[1, 6] = of_pages[f"pages_{space}_pool"]
        with pytest.raises(TrappedViolation, match=rf"page {table[1, 6]} of {table[1, 6]} in"):
            page_table.after_metadata(None, backend, batch([33, 100]))

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
