"""The page-table probe on trtllm_mha in mode contain: what becomes of bad entries."""

import pytest
import torch

from gemma4_dumps.reader import read_dump
from gemma4_runtime.errors import TrappedViolation
from trtllm_world import PAGE, STAND_INS, batch, build, fill, replay, trtllm_backend

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.fixture
def backend(swa_allocator):
    return trtllm_backend(swa_allocator)


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
            (build, "trapped"),
            (replay, "contained"),
        ):
            with pytest.raises(TrappedViolation, match="page_table") as caught:
                start(backend, batch([60]))
            assert read_dump(caught.value.dump).manifest.action == action
