"""What is given back wrongly, planted on SGLang's own allocator: caught at the call, with its dump."""

import contextlib

import pytest
import torch

from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.finding import Confidence
from swa_pools import FULL_PAGES, SWA_PAGES, OnSmallPools, caught, decode, extend, says

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


class TestDoubleFree(OnSmallPools):
    def test_a_second_call(self, dumps, allocator, page):
        slots = extend(allocator, 2 * page)
        allocator.free(slots)
        dump = caught(lambda: allocator.free(slots[-page:]))
        assert says(dump, "double_free", "free", int(slots[-page]), "full")
        assert "is free already" in dump.manifest.summary
        assert dump.tensor("page_states")[0].tolist() == [0, 0]
        assert int(slots[-1]) // page in dump.tensor("free_pages_full")

    def test_one_call_that_names_a_slot_twice(self, dumps, allocator):
        slots = extend(allocator, 3)
        dump = caught(lambda: allocator.free(torch.cat((slots, slots[1:2]))))
        assert says(dump, "double_free", "free", int(slots[1]), "full")
        assert dump.manifest.offences[0].row == 3
        assert "is named twice" in dump.manifest.summary

    # Only 0.5.23 frees segments.
    @pytest.mark.releases("0.5.23")
    def test_two_segments_of_one_free_group(self, dumps, allocator, page):
        slots, other = extend(allocator, 3), extend(allocator, page)
        allocator.free_group_begin()
        allocator.free_segment(slots, start_pos=0)
        allocator.free_swa_segment(other, start_pos=0)
        allocator.free_full(slots[:1])
        available = allocator.full_available_size()
        dump = caught(allocator.free_group_end)
        assert says(dump, "double_free", "free_group_end", int(slots[0]), "full")
        assert allocator.full_available_size() == available

    # Only 0.5.23 frees segments: it gives back a page for each that is named, page 0 for one without an SWA side.
    @pytest.mark.releases("0.5.23")
    @pytest.mark.parametrize("entry", ["free_swa_segment", "free_segment"])
    def test_a_segment_whose_page_has_no_swa_side_any_more(self, dumps, paged, entry):
        slots = extend(paged, 40)
        paged.free_swa_segment(slots[16:32], start_pos=16)
        before = paged.swa_available_size()
        dump = caught(lambda: getattr(paged, entry)(slots, start_pos=0))
        assert says(dump, "free_out_of_range", entry, 0, "swa")
        assert paged.swa_available_size() == before

    # Only 0.5.23 keeps a group's frees in the pools.
    @pytest.mark.releases("0.5.23")
    def test_a_group_that_a_clear_forgot_is_not_of_the_next(self, dumps, allocator):
        for _ in range(2):
            allocator.free_group_begin()
            allocator.free_segment(extend(allocator, 3), start_pos=0)
            allocator.clear()
        allocator.free_group_begin()
        allocator.free_segment(extend(allocator, 3), start_pos=0)
        allocator.free_group_end()

    # Only 0.5.23 has calls for one side alone.
    @pytest.mark.releases("0.5.23")
    def test_full_pages_alone_take_no_swa_page_with_them(self, dumps, allocator, page):
        """Their SWA pages, which the map still has, are nobody's loss: the group was not given them."""
        slots = extend(allocator, 2 * page)
        allocator.free_group_begin()
        with contextlib.suppress(AssertionError):
            allocator.free_full_segment(slots, start_pos=0)
        allocator.free_group_end()
        assert not list(dumps.glob("*lost-pages*"))

    def test_two_calls_of_one_free_group(self, dumps, allocator):
        slots, other = extend(allocator, 3), extend(allocator, 3)
        allocator.free_group_begin()
        allocator.free(slots)
        allocator.free(other)
        allocator.free(slots[:1])
        available = allocator.full_available_size()
        dump = caught(allocator.free_group_end)
        assert says(dump, "double_free", "free_group_end", int(slots[0]), "full")
        assert dump.manifest.scalars["pending_frees"] == 7
        assert allocator.full_available_size() == available

    def test_a_free_page_that_enters_a_group(self, dumps, allocator):
        slots = extend(allocator, 3)
        allocator.free(slots)
        allocator.free_group_begin()
        assert says(caught(lambda: allocator.free(slots)), "double_free", "free", int(slots[0]))

    def test_two_parts_of_a_page_outside_a_group(self, dumps, paged):
        slots = extend(paged, 8)
        paged.free(slots[:4])
        assert says(caught(lambda: paged.free(slots[4:])), "double_free", "free", int(slots[4]), "full")

    def test_free_swa_that_names_a_slot_twice(self, dumps, allocator, page):
        slots = extend(allocator, 2 * page)
        dump = caught(lambda: allocator.free_swa(torch.cat((slots, slots[:1]))))
        assert says(dump, "double_free", "free_swa", int(slots[0]), "full")

    # 0.5.23 takes no allocation back by restoring the lists.
    @pytest.mark.releases("0.5.13.post1")
    def test_a_dead_slot_of_a_draft_that_was_rolled_back(self, dumps, allocator):
        state = allocator.backup_state()
        draft = extend(allocator, 4)
        allocator.restore_state(state)
        assert says(caught(lambda: allocator.free(draft)), "double_free", "free", int(draft[0]))

    def test_int32_slots_as_a_request_row_holds_them(self, dumps, allocator):
        slots = extend(allocator, 3).to(torch.int32)
        allocator.free(slots)
        assert says(caught(lambda: allocator.free(slots)), "double_free", "free", int(slots[0]))


class TestLost(OnSmallPools):
    """A free that returns without having given back what it was told of."""

    def test_pages_that_a_free_left_out(self, dumps, allocator, page, monkeypatch):
        slots, inner = extend(allocator, 2 * page), allocator.full_attn_allocator
        kept = inner.free
        monkeypatch.setattr(inner, "free", lambda free_index: kept(free_index[:page]))
        dump = caught(lambda: allocator.free(slots))
        assert says(dump, "pool_leak", "free", int(slots[-1]) // page, "full")
        (first, *_) = conclude(Incident((dump,)))
        assert (first.rule, first.structure) == ("pages-lost-between-calls", Structure.FREE_CALL)
        assert (first.defect, first.confidence) == (Defect.LOST, Confidence.CERTAIN)

    # Only 0.5.23 frees segments.
    @pytest.mark.releases("0.5.23")
    @pytest.mark.parametrize("grouped", [False, True])
    def test_swa_pages_that_a_segment_left_out(self, dumps, allocator, page, monkeypatch, grouped):
        slots = extend(allocator, 2 * page)
        monkeypatch.setattr(allocator, "_free_swa_pages", lambda *args, **kwargs: None)
        if grouped:
            allocator.free_group_begin()
            allocator.free_segment(slots, start_pos=0)
        dump = caught(allocator.free_group_end if grouped else lambda: allocator.free_segment(slots, start_pos=0))
        assert says(dump, "pool_leak", "free_group_end" if grouped else "free_segment", pool="swa")
        assert dump.manifest.offence_count == 2

    @pytest.mark.sampled(4)
    # Only 0.5.23 keeps a group's frees in the pools.
    @pytest.mark.releases("0.5.23")
    @pytest.mark.parametrize(
        ("there", "defect"),
        [
            (lambda page: [], Defect.LOST),
            (lambda page: [0], Defect.ZERO),
            (lambda page: [-1], Defect.NEGATIVE),
            (lambda page: [page + 1], Defect.OFF_BY_ONE),
        ],
    )
    @pytest.mark.parametrize("swa", [False, True])
    def test_an_entry_of_a_group_that_its_list_has_lost_or_has_another_for(self, dumps, paged, there, defect, swa):
        slots, other = extend(paged, 16), extend(paged, 16)
        paged.free_group_begin()
        paged.free_segment(slots, start_pos=0)
        paged.free_segment(other, start_pos=0)
        pile = paged.swa_page_ids_group if swa else paged.full_attn_allocator.free_page_ids_group
        # The last is neither the first nor beside another of the group.
        page = int(pile[1][-1])
        pile[1] = torch.cat((pile[1][:-1], torch.tensor(there(page), dtype=pile[1].dtype)))
        dump = caught(paged.free_group_end)
        assert says(dump, "pool_leak", "free_group", page, "swa" if swa else "full", "cannot be judged")
        (first, *_) = conclude(Incident((dump,)))
        assert (first.rule, first.structure) == ("pages-lost-between-calls", Structure.FREE_GROUP)
        assert (first.defect, first.confidence) == (defect, Confidence.CERTAIN)

    # Only 0.5.23 frees segments.
    @pytest.mark.releases("0.5.23")
    @pytest.mark.parametrize("grouped", [False, True])
    def test_a_free_of_swa_slots_that_does_nothing(self, dumps, paged, monkeypatch, grouped):
        slots = extend(paged, 32)
        monkeypatch.setattr(paged, "_free_swa_pages", lambda *args, **kwargs: None)
        if grouped:
            paged.free_group_begin()
        dump = caught(lambda: paged.free_swa_segment(slots, start_pos=0))
        (first, *_) = conclude(Incident((dump,)))
        assert (first.rule, first.structure) == ("pages-lost-between-calls", Structure.FREE_CALL)
        assert (first.defect, first.confidence) == (Defect.LOST, Confidence.CERTAIN)

    @pytest.mark.parametrize("is_free", [False, True])
    def test_the_swa_page_of_a_page_in_place_of_another_is_left_to_the_audit_too(
        self, dumps, allocator, page, monkeypatch, is_free
    ):
        slots, other = extend(allocator, page), extend(allocator, page)
        (allocator.free if is_free else allocator.free_swa)(other)
        kept_full, kept_swa = allocator.full_attn_allocator.free, allocator.free_swa
        monkeypatch.setattr(allocator.full_attn_allocator, "free", lambda free_index: kept_full(other))
        monkeypatch.setattr(allocator, "free_swa", lambda free_index: kept_swa(other))
        allocator.free(slots)

    def test_a_page_in_place_of_another_is_left_to_the_audit(self, dumps, allocator, page, monkeypatch):
        slots, other, inner = extend(allocator, page), extend(allocator, page), allocator.full_attn_allocator
        kept = inner.free
        monkeypatch.setattr(inner, "free", lambda free_index: kept(other))
        allocator.free(slots)


class TestRange(OnSmallPools):
    @pytest.mark.sampled(4)
    @pytest.mark.parametrize("bad", ["zero", "dummy", "beyond", "minus one"])
    def test_a_full_slot_that_was_never_given(self, dumps, allocator, page, bad):
        value = {"zero": 0, "dummy": page - 1, "beyond": (FULL_PAGES + 1) * page, "minus one": -1}[bad]
        slots = extend(allocator, 2)
        before = allocator.full_available_size(), allocator.swa_available_size()
        dump = caught(lambda: allocator.free(torch.cat((slots, torch.tensor([value])))))
        assert says(dump, "free_out_of_range", "free", value, "full")
        assert ("page 0 is the dummy" in dump.manifest.summary) is (0 <= value < page)
        assert (allocator.full_available_size(), allocator.swa_available_size()) == before

    @pytest.mark.parametrize("entry", ["free", "free_swa"])
    def test_a_mapping_into_the_dummy_page_would_free_it(self, dumps, paged, entry):
        slots = extend(paged, 20)
        paged.full_to_swa_index_mapping[slots[5]] = 5
        dump = caught(lambda: getattr(paged, entry)(slots))
        assert says(dump, "free_out_of_range", entry, 5, "swa")
        assert dump.tensor("slots")[5].tolist() == [int(slots[5]), 5]
        assert "page 0 is the dummy" in dump.manifest.summary

    def test_a_mapping_beyond_the_pool(self, dumps, allocator, page):
        slots = extend(allocator, 2)
        beyond = (SWA_PAGES + 1) * page
        allocator.full_to_swa_index_mapping[slots[1]] = beyond
        assert says(caught(lambda: allocator.free(slots)), "free_out_of_range", "free", beyond, "swa")

    def test_free_swa_must_not_reach_the_sentinel(self, dumps, allocator):
        dump = caught(lambda: allocator.free_swa(torch.tensor([-1])))
        assert says(dump, "free_out_of_range", "free_swa", -1, "full")
        assert allocator.full_to_swa_index_mapping[-1] == -1

    def test_a_request_whose_last_swa_slot_is_gone_continues_in_page_zero(self, dumps, paged):
        slots = extend(paged, 20)
        paged.free_swa(slots)
        assert says(caught(lambda: decode(paged, [slots])), "alloc_out_of_range", "alloc_decode", 1, "swa")


# 0.5.23 takes no allocation back by restoring the lists, and refuses a group in a group.
@pytest.mark.releases("0.5.13.post1")
class TestLostPages(OnSmallPools):
    def test_swa_pages_freed_since_the_backup(self, dumps, allocator, page):
        slots = extend(allocator, 2 * page)
        peers = allocator.full_to_swa_index_mapping[slots].clone()
        state = allocator.backup_state()
        allocator.free_swa(slots[:page])
        dump = caught(lambda: allocator.restore_state(state))
        assert says(dump, "pool_leak", "restore_state", int(peers[0]) // page, "swa")

    def test_a_group_that_begins_again(self, dumps, allocator):
        slots = extend(allocator, 3)
        allocator.free_group_begin()
        allocator.free(slots)
        dump = caught(allocator.free_group_begin)
        assert says(dump, "pool_leak", "free_group_begin", int(slots[0]), "full")
        assert allocator.free_group
