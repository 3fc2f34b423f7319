"""Every fault of the allocator trap list, planted on SGLang's own allocator: caught at the call, with its dump."""

import pytest
import torch
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

from gemma4_dumps.reader import read_dump
from gemma4_dumps.schema import VERDICTS
from gemma4_dumps.store import DumpStore
from gemma4_runtime.errors import TrappedViolation
from gemma4_runtime.probes.swa_allocator_state import _BOOKS, RULES

PROBE = ("swa-allocator", "host-alloc-kernels")
FULL_PAGES, SWA_PAGES = 40, 16


def make_allocator(page, need_sort=False):
    """SGLang's own pool pair and allocator on the CPU: 40 full and 16 SWA pages."""
    pool = SWAKVPool(
        size=FULL_PAGES * page,
        size_swa=SWA_PAGES * page,
        page_size=page,
        dtype=torch.float32,
        head_num=1,
        head_dim=4,
        swa_attention_layer_ids=[0],
        full_attention_layer_ids=[1],
        enable_kvcache_transpose=False,
        device="cpu",
    )
    return SWATokenToKVPoolAllocator(
        FULL_PAGES * page, SWA_PAGES * page, page, torch.float32, "cpu", pool, need_sort=need_sort
    )


def extend(allocator, tokens, held=()):
    """Slots for `tokens` more tokens of a request that holds `held`."""
    if allocator.page_size == 1:
        return allocator.alloc(tokens)
    prefix, seq = len(held), len(held) + tokens
    last = int(held[-1]) if prefix else -1
    return allocator.alloc_extend(*(torch.tensor([x]) for x in (prefix, prefix, seq, seq, last)), tokens)


def decode(allocator, held):
    seq = torch.tensor([len(slots) + 1 for slots in held])
    return allocator.alloc_decode(seq, seq, torch.tensor([int(slots[-1]) for slots in held]))


def caught(call):
    """The dump that `call` was trapped with."""
    with pytest.raises(TrappedViolation) as trap:
        call()
    assert trap.value.dump is not None
    return read_dump(trap.value.dump)


def says(dump, verdict, entry, value=None, pool=None):
    manifest = dump.manifest
    assert verdict in VERDICTS
    assert (manifest.rule, manifest.verdict) == (RULES[verdict], verdict)
    assert manifest.site == f"SWATokenToKVPoolAllocator.{entry}"
    assert value is None or manifest.offences[0].value == value
    assert pool is None or manifest.pool_kind == pool
    assert {"free_pages_full", "free_pages_swa"} <= set(manifest.tensors)
    table = dump.tensor(manifest.offences[0].table)
    assert all(table[bad.row, bad.column] == bad.value for bad in manifest.offences)
    return True


@pytest.fixture(params=[16, 1], ids=["page16", "page1"])
def page(request):
    return request.param


@pytest.fixture
def paged():
    return make_allocator(16)


@pytest.fixture
def allocator(page):
    return make_allocator(page)


@pytest.fixture
def dumps(attach):
    return attach("trap", *PROBE)


class TestDoubleFree:
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

    def test_a_dead_slot_of_a_draft_that_was_rolled_back(self, dumps, allocator):
        state = allocator.backup_state()
        draft = extend(allocator, 4)
        allocator.restore_state(state)
        assert says(caught(lambda: allocator.free(draft)), "double_free", "free", int(draft[0]))

    def test_int32_slots_as_a_request_row_holds_them(self, dumps, allocator):
        slots = extend(allocator, 3).to(torch.int32)
        allocator.free(slots)
        assert says(caught(lambda: allocator.free(slots)), "double_free", "free", int(slots[0]))


class TestRange:
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


class TestOneSidedAllocation:
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

    def test_both_fail_and_nothing_is_taken(self, dumps, paged):
        request = extend(paged, SWA_PAGES * 16)
        paged.full_attn_allocator.free_pages = paged.full_attn_allocator.free_pages[:0]
        assert decode(paged, [request]) is None

    def test_a_refused_extend_takes_nothing(self, dumps, allocator, page):
        assert extend(allocator, (SWA_PAGES + 1) * page) is None
        assert DumpStore(dumps).list() == []


class TestStaleMapping:
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

    def test_a_tail_of_nothing_keeps_the_entries_of_the_last_owner(self, dumps, paged):
        slots = extend(paged, 20)
        paged.free(slots[:17])
        paged.full_attn_allocator.free_pages = paged.full_attn_allocator.free_pages.sort().values
        lens = [torch.tensor([x]) for x in (0, 0, 20, 20, -1)]
        dump = caught(lambda: paged.alloc_extend_swa_tail(*lens, 20, 0))
        assert says(dump, "stale_mapping", "alloc_extend_swa_tail", pool="swa")

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


class TestAlias:
    def test_two_live_full_slots_on_one_swa_slot(self, dumps, allocator):
        mine, other = extend(allocator, 2), extend(allocator, 2)
        mapping = allocator.full_to_swa_index_mapping
        mapping[mine[0]] = mapping[other[0]]
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

    def test_a_tail_that_does_not_begin_with_a_page(self, dumps, paged):
        lens = [torch.tensor([x]) for x in (0, 0, 40, 40, -1)]
        dump = caught(lambda: paged.alloc_extend_swa_tail(*lens, 40, 16))
        assert says(dump, "pool_alias", "alloc_extend_swa_tail", pool="swa")


class TestOverlap:
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

    def test_two_requests_that_continue_from_one_slot(self, dumps, paged):
        slots = extend(paged, 4)
        dump = caught(lambda: decode(paged, [slots, slots]))
        assert says(dump, "alloc_overlap", "alloc_decode", int(slots[-1]) + 1, "full")
        assert "twice in one call" in dump.manifest.summary

    def test_a_request_that_continues_in_a_page_that_it_freed(self, dumps, paged):
        slots = extend(paged, 4)
        peers = paged.full_to_swa_index_mapping[slots].clone()
        paged.free(slots)
        paged.full_to_swa_index_mapping[slots] = peers
        dump = caught(lambda: decode(paged, [slots]))
        assert says(dump, "alloc_overlap", "alloc_decode", int(slots[-1]) + 1, "full")
        assert "that page is free" in dump.manifest.summary


class TestLostPages:
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


def test_log_mode_goes_on_and_sees_what_comes_of_it(attach, paged):
    dumps = attach("log", *PROBE)
    slots, _held = extend(paged, 16), extend(paged, 16)
    paged.free(slots)
    paged.free(slots)
    extend(paged, 16)
    extend(paged, 16)
    found = sorted(read_dump(entry.path).manifest.verdict for entry in DumpStore(dumps).list())
    assert found == ["alloc_overlap", "double_free"]


@pytest.mark.parametrize("need_sort", [False, True])
def test_clear_starts_afresh_even_inside_a_group(dumps, page, need_sort):
    allocator = make_allocator(page, need_sort)
    slots = extend(allocator, 3 * page)
    allocator.free_group_begin()
    allocator.free(slots)
    allocator.clear()
    for _ in range(2):
        again = extend(allocator, SWA_PAGES * page)
        allocator.free(again)
    assert DumpStore(dumps).list() == []


def test_a_probe_that_attaches_late_learns_from_the_lists(dumps, allocator):
    slots, other = extend(allocator, 3), extend(allocator, 3)
    del _BOOKS[allocator]
    allocator.free(other)
    assert says(caught(lambda: allocator.free(other)), "double_free", "free", int(other[0]))
    allocator.free(slots)
