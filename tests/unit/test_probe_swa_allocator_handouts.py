"""What is handed out wrongly, planted on SGLang's own allocator: caught at the call, with its dump."""

import pytest
import torch

from gemma4_dumps.reader import read_dump
from gemma4_dumps.store import DumpStore
from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime import steps
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.leak.ledger import ledger_of
from gemma4_runtime.probes.swa_allocator_state import _BOOKS
from gemma4_triage.diagnose.conclude import conclude
from gemma4_triage.diagnose.hand_out import hand_out_wrong
from gemma4_triage.diagnose.incident import Incident
from gemma4_triage.finding import Confidence
from pool_world import PoolWorld
from swa_pools import FULL_PAGES, PROBE, SWA_PAGES, OnSmallPools, caught, decode, extend, make_allocator, says

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

LISTS = {"full": Structure.FULL_FREE_LIST, "swa": Structure.SWA_FREE_LIST}


class TestOneSidedAllocation(OnSmallPools):
    """A request that fills its last page: its next token needs a page of both pools."""

    def test_full_succeeds_and_swa_does_not(self, dumps, paged):
        request = extend(paged, SWA_PAGES * 16)
        next_page = int(paged.full_attn_allocator.free_pages[0])
        dump = caught(lambda: decode(paged, [request]))
        assert says(dump, "pool_leak", "alloc_decode", next_page, "full")
        assert dump.tensor("pages_lost").tolist() == [[next_page]]
        assert dump.manifest.scalars["swa_available"] == 0
        assert paged.full_available_size() == (FULL_PAGES - SWA_PAGES - 1) * 16

    def test_swa_succeeds_and_full_does_not(self, dumps, paged):
        requests = [extend(paged, 16) for _ in range(8)]
        paged.full_attn_allocator.free_pages = paged.full_attn_allocator.free_pages[:0]
        dump = caught(lambda: decode(paged, requests[:2]))
        assert says(dump, "pool_leak", "alloc_decode", pool="swa")
        assert dump.manifest.offence_count == 2

    @pytest.mark.parametrize("room", [True, False])
    def test_what_is_refused_although_there_is_room_is_the_calls_fault(self, dumps, paged, monkeypatch, room):
        request = extend(paged, 16)
        monkeypatch.setattr(paged.swa_attn_allocator, "alloc_decode", lambda *args, **kwargs: None)
        if not room:
            paged.swa_attn_allocator.free_pages = paged.swa_attn_allocator.free_pages[:0]
        (first, *_) = conclude(Incident((caught(lambda: decode(paged, [request])),)))
        assert first.rule == "failed-allocation-keeps-pages"
        assert first.structure is (Structure.ALLOCATION if room else Structure.FULL_FREE_LIST)

    @pytest.mark.parametrize("wrong", [True, False])
    def test_a_pair_that_counts_its_fuller_pool_alone_is_told(self, dumps, paged, monkeypatch, wrong):
        request = extend(paged, SWA_PAGES * 16)
        if wrong:
            monkeypatch.setattr(type(paged), "available_size", lambda pair: pair.full_available_size())
        (first, *_) = conclude(Incident((caught(lambda: decode(paged, [request])),)))
        assert first.rule == "failed-allocation-keeps-pages"
        assert ("told of room that there is not" in first.cause) is wrong

    def test_both_fail_and_nothing_is_taken(self, dumps, paged):
        request = extend(paged, SWA_PAGES * 16)
        paged.full_attn_allocator.free_pages = paged.full_attn_allocator.free_pages[:0]
        assert decode(paged, [request]) is None

    def test_a_refused_extend_takes_nothing(self, dumps, allocator, page):
        assert extend(allocator, (SWA_PAGES + 1) * page) is None
        assert DumpStore(dumps).list() == []


class TestOverlap(OnSmallPools):
    @pytest.mark.parametrize("pool", ["full", "swa"])
    def test_a_page_that_stands_twice_in_a_free_list(self, attach, allocator, page, pool):
        dumps = attach("log", *PROBE)
        slots = extend(allocator, page)
        inner = getattr(allocator, f"{pool}_attn_allocator")
        held = int(slots[0]) // page if pool == "full" else int(allocator.full_to_swa_index_mapping[slots[0]]) // page
        assert DumpStore(dumps).list() == []
        # In place, as a stray write would: SGLang itself always makes a new list.
        inner.free_pages[0] = held
        extend(allocator, page)
        (entry,) = DumpStore(dumps).list()
        dump = read_dump(entry.path)
        assert says(dump, "alloc_overlap", "alloc" if page == 1 else "alloc_extend", held * page, pool)
        assert "is in use" in dump.manifest.summary
        assert held in dump.tensor(f"free_before_{pool}").tolist()
        assert hand_out_wrong(dump).structure is LISTS[pool]

    def test_two_requests_that_continue_from_one_slot(self, dumps, paged):
        slots = extend(paged, 4)
        dump = caught(lambda: decode(paged, [slots, slots]))
        assert says(dump, "alloc_overlap", "alloc_decode", int(slots[-1]) + 1, "full")
        assert "twice in one call" in dump.manifest.summary
        assert hand_out_wrong(dump).structure is None, "the call did what it was asked"

    def test_a_request_that_continues_in_a_page_that_it_freed(self, dumps, paged):
        slots = extend(paged, 4)
        peers = paged.full_to_swa_index_mapping[slots].clone()
        paged.free(slots)
        paged.full_to_swa_index_mapping[slots] = peers
        dump = caught(lambda: decode(paged, [slots]))
        assert says(dump, "alloc_overlap", "alloc_decode", int(slots[-1]) + 1, "full")
        assert "that page is free" in dump.manifest.summary
        assert dump.tensor("swa_before").tolist() == [int(peers[-1])]


class TestLifetime(OnSmallPools):
    def test_log_mode_goes_on_and_sees_what_comes_of_it(self, attach, paged):
        dumps = attach("log", *PROBE)
        slots, _held = extend(paged, 16), extend(paged, 16)
        paged.free(slots)
        paged.free(slots)
        extend(paged, 16)
        extend(paged, 16)
        found = sorted(read_dump(entry.path).manifest.verdict for entry in DumpStore(dumps).list())
        assert found == ["alloc_overlap", "double_free"]

    @pytest.mark.parametrize("need_sort", [False, True])
    def test_clear_starts_afresh_even_inside_a_group(self, dumps, page, need_sort):
        allocator = make_allocator(page, need_sort)
        slots = extend(allocator, 3 * page)
        allocator.free_group_begin()
        allocator.free(slots)
        allocator.clear()
        for _ in range(2):
            again = extend(allocator, SWA_PAGES * page)
            allocator.free(again)
        assert DumpStore(dumps).list() == []

    def test_a_probe_that_attaches_late_learns_from_the_lists(self, dumps, allocator):
        slots, other = extend(allocator, 3), extend(allocator, 3)
        del _BOOKS[allocator]
        allocator.free(other)
        assert says(caught(lambda: allocator.free(other)), "double_free", "free", int(other[0]))
        allocator.free(slots)


class TestBeforeTheMapping(OnSmallPools):
    """What the pools themselves gave is known, whatever became of it."""

    def test_a_slot_that_the_mapping_cannot_index(self, dumps, paged):
        far = FULL_PAGES * 10
        # In place, as a stray write would.
        paged.full_attn_allocator.free_pages[0] = far
        dump = caught(lambda: extend(paged, 3))
        assert says(dump, "alloc_out_of_range", "alloc_extend", far * 16, "full")
        assert hand_out_wrong(dump).structure is Structure.FULL_FREE_LIST

    # Only 0.5.23 writes the mapping apart from the allocation.
    @pytest.mark.releases("0.5.23")
    def test_a_mapping_that_was_not_written(self, dumps, paged, monkeypatch):
        monkeypatch.setattr(paged, "set_full_to_swa_mapping", lambda *args: None)
        dump = caught(lambda: extend(paged, 3))
        assert says(dump, "alloc_out_of_range", "alloc_extend", 0, "swa")
        (first, *_) = conclude(Incident((dump,)))
        assert (first.structure, first.defect) == (Structure.SWA_MAPPING, Defect.ZERO)
        assert first.confidence is Confidence.CERTAIN

    def test_what_the_pool_gave_itself_is_not_the_mappings_fault(self, dumps, paged):
        paged.swa_attn_allocator.free_pages[0] = SWA_PAGES + 5
        dump = caught(lambda: extend(paged, 3))
        assert hand_out_wrong(dump).structure is Structure.SWA_FREE_LIST


@pytest.mark.releases("0.5.23")  # Before, a hand-out of single slots writes the mapping without a call.
def test_of_single_slots_too_what_the_pool_gave_tells_that_the_mapping_was_written_with_its_sides_exchanged(
    attach, monkeypatch
):
    attach("trap", *PROBE)
    allocator = make_allocator(1)
    pool = allocator.swa_attn_allocator
    # The lists of both pools are in step at first.
    pool.free_pages = pool.free_pages.flip(0)
    right = allocator.set_full_to_swa_mapping
    monkeypatch.setattr(allocator, "set_full_to_swa_mapping", lambda full, swa: right(swa, full))
    dump = caught(lambda: extend(allocator, 5))
    assert dump.tensor("swa_given").tolist() == [16, 15, 14, 13, 12]
    (first, *_) = conclude(Incident((dump,)))
    assert (first.structure, first.defect) == (Structure.SWA_MAPPING, Defect.SWAPPED)
    assert "with full and SWA slots exchanged" in first.cause


class TestLengths(OnSmallPools):
    @pytest.mark.parametrize("entry", ["alloc_extend", "alloc_decode"])
    def test_a_length_that_the_host_has_otherwise(self, dumps, paged, entry):
        request = extend(paged, 20)
        lens = torch.tensor([21])
        arguments = {
            "alloc_extend": (torch.tensor([20]), torch.tensor([20]), lens, lens + 1, request[-1:], 2),
            "alloc_decode": (lens, lens + 1, request[-1:]),
        }[entry]
        dump = caught(lambda: getattr(paged, entry)(*arguments))
        assert (dump.manifest.rule, dump.manifest.site.rpartition(".")[2]) == ("swa-alloc-lengths", entry)
        assert dump.tensor("lengths").tolist() == [[22, 21]]
        (first, *_) = conclude(Incident((dump,)))
        assert (first.structure, first.defect) == (Structure.BATCH_LENGTHS, Defect.OFF_BY_ONE)
        assert first.confidence is Confidence.CERTAIN


def test_a_hand_out_ahead_of_the_first_step_has_the_ledgers_step(attach, monkeypatch):
    monkeypatch.setenv("GEMMA4_TRIAGE_LEAK", "dump")
    for name in ("running", "awaited", "_reading", "_latest"):
        monkeypatch.setattr(steps, name, None)
    dumps = attach("trap", "swa-allocator", "leak-ledger", "host-alloc-kernels")
    world = PoolWorld(monkeypatch, page_size=16)
    world.allocator.full_attn_allocator.free_pages[0] = 1 << 20
    with pytest.raises(TrappedViolation):
        world.start(list(range(40)))
    dump = read_dump(next(dumps.glob("*swa-alloc-range*")))
    assert dump.manifest.step == ledger_of(world.allocator).step == 0
