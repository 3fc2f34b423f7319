"""Full slots that lead to a wrong SWA slot, planted on SGLang's own allocator: caught at the call, with its dump."""

import pytest
import torch

from gemma4_dumps.store import DumpStore
from swa_pools import OnSmallPools, caught, decode, extend, says

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


class TestStaleMapping(OnSmallPools):
    # 0.5.14 and later clear the mapping of what free_swa gives back.
    @pytest.mark.releases("0.5.13.post1")
    def test_free_swa_of_part_of_a_page(self, dumps, paged):
        slots = extend(paged, 20)
        dump = caught(lambda: paged.free_swa(slots[:4]))
        assert says(dump, "stale_mapping", "free_swa", pool="swa")
        assert dump.manifest.offence_count == 12
        assert dump.tensor("slots")[:, 0].tolist() == slots[4:16].tolist()
        assert "which it was not told of" in dump.manifest.summary

    def test_free_swa_of_whole_pages_leaves_nothing(self, dumps, paged):
        slots = extend(paged, 40)
        paged.free_swa(slots[:32])
        paged.free_swa(slots[:32])
        paged.free(slots)
        assert DumpStore(dumps).list() == []

    def test_an_entry_that_outlived_its_page_is_caught_when_it_is_used(self, dumps, allocator):
        slots = extend(allocator, 2)
        peers = allocator.full_to_swa_index_mapping[slots].clone()
        allocator.free_swa(slots)
        allocator.full_to_swa_index_mapping[slots] = peers
        dump = caught(lambda: allocator.free(slots))
        assert says(dump, "stale_mapping", "free", int(peers[0]), "swa")
        assert dump.tensor("page_states")[0].tolist() == [1, 0]

    def test_a_request_that_continues_in_a_released_swa_page(self, dumps, paged):
        slots = extend(paged, 20)
        peers = paged.full_to_swa_index_mapping[slots].clone()
        paged.free_swa(slots)
        paged.full_to_swa_index_mapping[slots] = peers
        dump = caught(lambda: decode(paged, [slots]))
        assert says(dump, "stale_mapping", "alloc_decode", int(peers[-1]) + 1, "swa")

    def test_a_mapping_written_to_a_free_page(self, dumps, allocator, page):
        slots = extend(allocator, page)
        target = allocator.swa_attn_allocator.free_pages[:1] * page
        dump = caught(lambda: allocator.set_full_to_swa_mapping(slots[:1], target))
        assert says(dump, "stale_mapping", "set_full_to_swa_mapping", int(target), "swa")

    # 0.5.23 writes no entries for a tail of nothing.
    @pytest.mark.releases("0.5.13.post1")
    def test_a_tail_of_nothing_keeps_the_entries_of_the_last_owner(self, dumps, paged):
        slots = extend(paged, 20)
        paged.free(slots[:17])
        paged.full_attn_allocator.free_pages = paged.full_attn_allocator.free_pages.sort().values
        lens = [torch.tensor([x]) for x in (0, 0, 20, 20, -1)]
        dump = caught(lambda: paged.alloc_extend_swa_tail(*lens, 20, 0))
        assert says(dump, "stale_mapping", "alloc_extend_swa_tail", pool="swa")

    # 0.5.23 frees whole pages, and clears the mapping of each.
    @pytest.mark.releases("0.5.13.post1")
    def test_rejected_drafts_in_the_last_page_are_no_violation(self, dumps, paged):
        prompt = extend(paged, 18)
        extend(paged, 4, prompt)
        paged.free(prompt)
        left = paged.full_to_swa_index_mapping[int(prompt[-1]) + 1 : int(prompt[-1]) + 5]
        assert (left > 0).all()
        again = [extend(paged, 18) for _ in range(8)]
        for slots in again:
            paged.free(slots)
        assert DumpStore(dumps).list() == []


class TestAlias(OnSmallPools):
    def test_two_live_full_slots_on_one_swa_slot(self, dumps, allocator):
        mine, other = extend(allocator, 2), extend(allocator, 2)
        mapping = allocator.full_to_swa_index_mapping
        mapping[mine[0]] = mapping[other[0]]
        dump = caught(lambda: allocator.free(mine))
        assert says(dump, "pool_alias", "free", int(mapping[other[0]]), "swa")
        assert dump.tensor("page_states")[0, 1] == int(other[0]) // allocator.page_size

    # 0.5.23 takes no allocation back by restoring the lists.
    @pytest.mark.releases("0.5.13.post1")
    def test_whose_a_page_is_outlives_a_rollback(self, dumps, allocator):
        # GIVEN two requests, and drafts that are allocated and rolled back
        mine, other = extend(allocator, 2), extend(allocator, 2)
        state = allocator.backup_state()
        extend(allocator, 2)
        allocator.restore_state(state)
        # WHEN one request's slot leads to the other's page
        mapping = allocator.full_to_swa_index_mapping
        mapping[mine[0]] = mapping[other[0]]
        # THEN it is still known whose that is
        dump = caught(lambda: allocator.free(mine))
        assert says(dump, "pool_alias", "free", int(mapping[other[0]]), "swa")
        assert dump.tensor("page_states")[0, 1] == int(other[0]) // allocator.page_size

    def test_two_slots_of_one_page_on_one_swa_slot(self, dumps, paged):
        slots = extend(paged, 20)
        paged.full_to_swa_index_mapping[slots[3]] = paged.full_to_swa_index_mapping[slots[4]]
        assert says(caught(lambda: paged.free(slots)), "pool_alias", "free", pool="swa")

    def test_a_request_that_continues_in_the_page_of_another(self, dumps, paged):
        mine, other = extend(paged, 4), extend(paged, 4)
        paged.full_to_swa_index_mapping[mine] = paged.full_to_swa_index_mapping[other].clone()
        dump = caught(lambda: decode(paged, [mine]))
        assert says(dump, "pool_alias", "alloc_decode", pool="swa")

    def test_a_mapping_written_twice(self, dumps, allocator):
        mine, other = extend(allocator, 2), extend(allocator, 2)
        taken = allocator.full_to_swa_index_mapping[other].clone()
        dump = caught(lambda: allocator.set_full_to_swa_mapping(mine, taken))
        assert says(dump, "pool_alias", "set_full_to_swa_mapping", int(taken[0]), "swa")

    # 0.5.13.post1 moves no SWA page.
    @pytest.mark.releases("0.5.23")
    def test_a_page_that_moves_is_no_violation(self, dumps, paged):
        # GIVEN a node of the prefix cache without SWA pages, and a request with the same prompt
        node, mine = extend(paged, 32), extend(paged, 32)
        paged.free_swa_segment(node, start_pos=0)
        # WHEN the cache takes the request's
        taken = paged.full_to_swa_index_mapping[mine].clone()
        paged.clear_full_to_swa_mapping(mine)
        paged.set_full_to_swa_mapping(node, taken)
        paged.free_full_segment(mine, start_pos=0)
        # THEN that is legal, and they go with the node
        paged.free_segment(node, start_pos=0)
        assert DumpStore(dumps).list() == []

    # 0.5.13.post1 moves no SWA page.
    @pytest.mark.releases("0.5.23")
    def test_a_page_that_moves_while_an_entry_is_left(self, dumps, paged):
        node, mine = extend(paged, 32), extend(paged, 32)
        paged.free_swa_segment(node, start_pos=0)
        taken = paged.full_to_swa_index_mapping[mine].clone()
        paged.clear_full_to_swa_mapping(mine[:-1])
        dump = caught(lambda: paged.set_full_to_swa_mapping(node, taken))
        assert says(dump, "pool_alias", "set_full_to_swa_mapping", int(taken[16]), "swa")

    def test_a_tail_that_does_not_begin_with_a_page(self, dumps, paged):
        lens = [torch.tensor([x]) for x in (0, 0, 40, 40, -1)]
        dump = caught(lambda: paged.alloc_extend_swa_tail(*lens, 40, 16))
        assert says(dump, "pool_alias", "alloc_extend_swa_tail", pool="swa")
