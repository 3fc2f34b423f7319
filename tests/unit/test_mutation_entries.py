"""How an entry is corrupted, and what the live structures look like as entries: on SGLang's own allocator."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gemma4_dumps.structures import Defect, Structure
from gemma4_repro.engine.serving import request_id
from gemma4_repro.mutations import forward_state, standing_state
from gemma4_repro.mutations.entry import Change, Entry, corrupt
from gemma4_repro.mutations.live_state import LiveState
from gemma4_runtime.release.requests import held, set_swa_evicted, swa_evicted, swa_kept_until
from gemma4_runtime.releases import BASE, installed_or_base

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

PAGE, WINDOW = 16, 8


def entries_of(values: list[int], **more: Any) -> list[Entry]:
    return [
        Entry(
            where=str(place),
            value=value,
            write=lambda new, place=place: values.__setitem__(place, new),
            read=lambda place=place: values[place],
            upper=65,
            own=[other for at, other in enumerate(values) if at != place],
            **more,
        )
        for place, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("defect", "allowed"),
    [
        (Defect.OFF_BY_ONE, {11, 13, 19, 21, 29, 31}),
        (Defect.ZERO, {0}),
        (Defect.NEGATIVE, {-1}),
        (Defect.PAST_END, {65, 72}),
        (Defect.DUPLICATE, {12, 20, 30}),
        (Defect.FOREIGN, {40}),
        (Defect.STALE, {50}),
        (Defect.OTHER_SPACE, {60}),
    ],
)
@pytest.mark.parametrize("seed", range(5))
def test_one_entry_becomes_wrong_in_the_way_that_was_asked_for(defect: Defect, allowed: set[int], seed: int) -> None:
    values = [12, 20, 30]
    entries = entries_of(values, foreign=[40], stale=[50, 40], other_space=[60])
    change = corrupt(defect, entries, random.Random(seed))
    assert change is not None
    wrong = [(old.value, new) for old, new in zip(entries, values, strict=True) if old.value != new]
    assert wrong == [(change.entry.value, change.after)]
    assert change.after in allowed


def test_two_entries_are_exchanged() -> None:
    values = [12, 20]
    change = corrupt(Defect.SWAPPED, entries_of(values), random.Random(1))
    assert values == [20, 12]
    assert change is not None
    assert change.partner is not None


def test_the_same_seed_changes_the_same_entry() -> None:
    first, second = list(range(1, 40)), list(range(1, 40))
    for values in (first, second):
        corrupt(Defect.OFF_BY_ONE, entries_of(values), random.Random(9))
    assert first == second


@pytest.mark.parametrize("defect", [Defect.FOREIGN, Defect.STALE, Defect.OTHER_SPACE, Defect.LOST, Defect.EARLY])
def test_what_cannot_be_wrong_in_that_way_is_left_alone(defect: Defect) -> None:
    values = [12, 20]
    assert corrupt(defect, entries_of(values), random.Random(1)) is None
    assert values == [12, 20]


@pytest.fixture
def live(swa_allocator: Any) -> LiveState:
    """Return two requests of 40 and 20 tokens on SGLang's allocator, with aged pools, and an empty prefix cache."""
    standing_state.age(swa_allocator, 3)
    rows = torch.zeros(4, 64, dtype=torch.int32)
    requests = []
    for row, length in ((1, 40), (2, 20)):
        none, lengths = torch.tensor([0]), torch.tensor([length])
        slots = swa_allocator.alloc_extend(none, none, lengths, lengths, torch.tensor([-1]), length)
        rows[row, :length] = slots
        evicted: dict[Any, int] = {}
        requests.append(
            SimpleNamespace(
                rid=request_id(row),
                req_pool_idx=row,
                seqlen=length,
                finished=lambda: False,
                kv_allocated_len=length,
                kv_committed_len=length,
                cache_protected_len=0,
                swa_evicted_seqlen=0,
                get_evicted_seqlen=lambda kind, evicted=evicted: evicted.get(kind, 0),
                set_evicted_seqlen=evicted.__setitem__,
            )
        )
    root = SimpleNamespace(children={}, value=None, id=0)
    scheduler = SimpleNamespace(
        page_size=PAGE,
        token_to_kv_pool_allocator=swa_allocator,
        req_to_token_pool=SimpleNamespace(req_to_token=rows, free_slots=[3]),
        tree_cache=SimpleNamespace(root_node=root, sliding_window_size=WINDOW),
    )
    lengths = torch.tensor([40, 20])
    return LiveState(scheduler, SimpleNamespace(reqs=requests, seq_lens=lengths, seq_lens_cpu=lengths.clone()))


def test_ageing_keeps_every_page_and_parts_the_pools(swa_allocator: Any) -> None:
    standing_state.age(swa_allocator, 3)
    full, swa = swa_allocator.full_attn_allocator.free_pages, swa_allocator.swa_attn_allocator.free_pages
    assert sorted(full.tolist()) == list(range(1, 161))
    assert sorted(swa.tolist()) == list(range(1, 65))
    assert full.tolist()[:20] != swa.tolist()[:20]


def test_a_row_has_an_entry_for_each_page_and_knows_who_has_the_others(live: LiveState) -> None:
    entries = standing_state.entries(Structure.REQUEST_ROW, live)
    assert [(entry.prompt, entry.row) for entry in entries] == [(1, 1)] * 3 + [(2, 2)] * 2
    first = entries[0]
    assert set(first.foreign) == {entry.value for entry in entries[3:]}
    first.write(9)
    assert live.rows[1, :PAGE].tolist() == list(range(9 * PAGE, 10 * PAGE))
    assert live.rows[1, PAGE].item() // PAGE == entries[1].value
    assert first.read() == 9


def test_the_map_is_changed_for_one_page_alone(live: LiveState) -> None:
    before = live.mapping.clone()
    entry = standing_state.entries(Structure.SWA_MAPPING, live)[1]
    entry.write(7)
    slots = live.rows[1, PAGE : 2 * PAGE].long()
    assert live.mapping[slots].tolist() == list(range(7 * PAGE, 8 * PAGE))
    assert set((live.mapping != before).nonzero().flatten().tolist()) <= set(slots.tolist())
    assert entry.other_space == [int(slots[0]) // PAGE]


@pytest.mark.parametrize("structure", [Structure.FULL_FREE_LIST, Structure.SWA_FREE_LIST])
def test_a_free_list_is_replaced_and_never_written_to(live: LiveState, structure: Structure) -> None:
    swa = structure is Structure.SWA_FREE_LIST
    pool = live.allocator.swa_attn_allocator if swa else live.allocator.full_attn_allocator
    held = pool.free_pages
    before = held.tolist()
    entry = standing_state.entries(structure, live)[2]
    entry.write(0)
    assert held.tolist() == before, "whoever kept the list would see it change"
    assert pool.free_pages.tolist() == [*before[:2], 0, *before[3:]]
    assert entry.drop is not None
    entry.drop()
    assert pool.free_pages.tolist() == [*before[:2], *before[3:]]


def test_a_call_gets_slots_of_its_own(live: LiveState) -> None:
    slots = live.rows[1, :40].long()
    given = standing_state.Slots(slots)
    entry = standing_state.slot_entries(live, given, swa=False)[0]
    entry.write(0)
    assert slots.tolist() == live.rows[1, :40].tolist()
    assert set((given.now // PAGE).tolist()) == {0, *((slots // PAGE).tolist())} - {entry.value}
    assert (entry.prompt, entry.row) == (1, 1)


def test_lengths_and_counters_are_of_the_request(live: LiveState) -> None:
    lengths = standing_state.entries(Structure.BATCH_LENGTHS, live)
    lengths[1].write(39)
    assert live.batch.seq_lens.tolist() == live.batch.seq_lens_cpu.tolist() == [40, 39]
    counter = next(
        entry for entry in standing_state.entries(Structure.REQUEST_COUNTERS, live) if "swa_evicted" in entry.where
    )
    counter.write(1)
    assert swa_evicted(live.batch.reqs[0]) == PAGE


def test_below_what_the_cache_keeps_sglang_takes_one_count_of_evicted_pages_for_another(live: LiveState) -> None:
    request = live.batch.reqs[0]
    if installed_or_base() != BASE:
        from sglang.srt.managers.schedule_batch import ReqKvInfo

        request.kv = ReqKvInfo(**{name: getattr(request, name) for name in ("req_pool_idx", "kv_allocated_len")})
    held(request).cache_protected_len = 2 * PAGE
    set_swa_evicted(request, PAGE)
    entry = next(
        one for one in standing_state.entries(Structure.REQUEST_COUNTERS, live) if one.where.startswith("swa_evicted")
    )
    none = [after for after in (-1, 0, 1, 2, 3) if Change(entry, after).is_none_to_sglang]
    # Before 0.5.23 a count is what SGLang takes it for.
    assert none == ([0, 2] if swa_kept_until(request, PAGE) else [])


@pytest.fixture
def forward(live: LiveState) -> Any:
    """Return a backend and a forward batch that decodes both requests, with the page tables that SGLang makes."""
    slots = live.rows[1:3, ::PAGE].long()
    metadata = SimpleNamespace(
        page_table=(slots // PAGE).int(),
        swa_page_table=(live.mapping[slots] // PAGE).int(),
        cache_seqlens_int32=torch.tensor([40, 20], dtype=torch.int32),
        max_seq_len_q=1,
    )
    made = SimpleNamespace(
        rids=[request.rid for request in live.batch.reqs],
        req_pool_indices=torch.tensor([1, 2]),
        out_cache_loc=torch.stack([live.rows[1, 39], live.rows[2, 19]]).long(),
        extend_seq_lens_cpu=None,
    )
    return SimpleNamespace(forward_metadata=metadata), made


def test_a_page_table_has_an_entry_for_each_page_of_each_request(live: LiveState, forward: Any) -> None:
    backend, made = forward
    entries = forward_state.table_entries(live, backend, made, swa=False)
    assert [(entry.prompt, entry.row) for entry in entries] == [(1, 1)] * 3 + [(2, 2)] * 2
    assert [entry.value for entry in entries[:3]] == live.pages(live.rows[1, :40].long(), swa=False)
    assert set(entries[0].foreign) == {entry.value for entry in entries[3:]}
    assert entries[0].other_space == live.pages(live.rows[1, :1].long(), swa=True)
    entries[1].write(7)
    assert backend.forward_metadata.page_table[0].tolist()[:3] == [entries[0].value, 7, entries[2].value]
    assert entries[1].read() == 7


def test_of_a_sliding_table_only_what_the_window_reaches_is_live(live: LiveState, forward: Any) -> None:
    backend, made = forward
    entries = forward_state.table_entries(live, backend, made, swa=True)
    # Of 40 tokens a window of 8 begins at token 31, in the second page; of 20 at 11, in the first.
    assert [(entry.row, entry.where) for entry in entries] == [
        (1, "row 0, column 1 of 2"),
        (1, "row 0, column 2 of 2"),
        (2, "row 1, column 0 of 2"),
        (2, "row 1, column 1 of 2"),
    ]
    assert [entry.value for entry in entries[:2]] == live.pages(live.rows[1, :40].long(), swa=True)[1:]
    assert entries[0].upper == live.swa_end


def test_without_a_second_table_there_is_nothing_to_exchange(live: LiveState, forward: Any) -> None:
    backend, made = forward
    backend.forward_metadata.swa_page_table = None
    assert forward_state.table_entries(live, backend, made, swa=True) == []


def test_lengths_that_a_kernel_is_told_are_replaced(live: LiveState, forward: Any) -> None:
    backend, made = forward
    told = backend.forward_metadata.cache_seqlens_int32
    entries = forward_state.length_entries(live, backend, made, {2: 19})
    assert [list(entry.stale) for entry in entries] == [[], [19]]
    entries[0].write(41)
    entries[1].write(21)
    assert backend.forward_metadata.cache_seqlens_int32.tolist() == [41, 21]
    assert told.tolist() == [40, 20], "the batch shares the tensor"


def test_a_row_index_may_become_one_that_nobody_has(live: LiveState, forward: Any) -> None:
    _, made = forward
    entries = forward_state.row_index_entries(live, made)
    assert [(entry.value, list(entry.foreign), list(entry.stale)) for entry in entries] == [
        (1, [2], [3]),
        (2, [1], [3]),
    ]
    entries[1].write(3)
    assert made.req_pool_indices.tolist() == [1, 3]


@pytest.mark.parametrize("prefill", [False, True])
def test_a_write_location_is_of_the_request_whose_token_goes_there(
    live: LiveState, forward: Any, prefill: bool
) -> None:
    _, made = forward
    if prefill:
        made.extend_seq_lens_cpu = [3, 1]
        made.out_cache_loc = torch.cat([live.rows[1, 37:40], live.rows[2, 19:20]]).long()
    held = made.out_cache_loc
    before = held.tolist()
    entries = forward_state.write_entries(live, made, before=[before[0], 5])
    assert [entry.row for entry in entries] == ([1, 1, 1, 2] if prefill else [1, 2])
    assert list(entries[0].own) == (before[1:3] if prefill else [])
    assert set(entries[0].foreign) <= set(live.rows[2, :20].tolist())
    assert list(entries[0].stale) == [5], "what this forward writes is not stale"
    entries[0].write(7)
    assert made.out_cache_loc.tolist() == [7, *before[1:]]
    assert held.tolist() == before, "the ledger keeps the tensor"


def test_a_forward_that_writes_nothing_has_no_such_entries(live: LiveState, forward: Any) -> None:
    _, made = forward
    made.out_cache_loc = None
    assert forward_state.write_entries(live, made, before=[]) == []


class TestPrefixCache:
    """Two nodes: one of a page that both requests could share, and one below it."""

    @pytest.fixture
    def nodes(self, live: LiveState) -> Any:
        root = live.tree.root_node
        lower = SimpleNamespace(id=2, children={}, value=live.rows[2, :PAGE].long(), full_lock_ref=0, swa_lock_ref=0)
        upper = SimpleNamespace(
            id=1, children={0: lower}, value=live.rows[1, : 2 * PAGE].long(), full_lock_ref=2, swa_lock_ref=1
        )
        root.children, upper.parent, lower.parent = {0: upper}, root, upper
        live.batch = None
        return upper, lower

    def test_a_node_has_an_entry_for_each_page(self, live: LiveState, nodes: Any) -> None:
        entries = standing_state.entries(Structure.TREE_NODE, live)
        pages = live.pages(nodes[0].value, swa=False), live.pages(nodes[1].value, swa=False)
        assert [entry.value for entry in entries] == [*pages[0], *pages[1]]
        assert list(entries[0].foreign) == pages[1]
        held = nodes[0].value
        before = held.tolist()
        entries[0].write(9)
        assert held.tolist() == before
        assert nodes[0].value.tolist() == [*range(9 * PAGE, 10 * PAGE), *before[PAGE:]]

    def test_a_node_that_is_lost_leaves_the_others(self, live: LiveState, nodes: Any) -> None:
        upper, lower = nodes
        last = standing_state.entries(Structure.TREE_NODE, live)[-1]
        assert last.drop is not None
        last.drop()
        assert live.nodes() == [upper]
        assert lower.value is not None

    def test_while_nothing_runs_the_map_is_that_of_the_cache(self, live: LiveState, nodes: Any) -> None:
        entries = standing_state.entries(Structure.SWA_MAPPING, live)
        assert [entry.value for entry in entries] == [
            *live.pages(nodes[0].value, swa=True),
            *live.pages(nodes[1].value, swa=True),
        ]

    def test_locks_that_are_held_can_be_wrong(self, live: LiveState, nodes: Any) -> None:
        entries = standing_state.entries(Structure.TREE_LOCK, live)
        assert [(entry.where, entry.value) for entry in entries] == [
            ("full_lock_ref of node 1", 2),
            ("swa_lock_ref of node 1", 1),
        ]
        entries[0].write(1)
        assert nodes[0].full_lock_ref == 1


def test_positions_are_of_the_forwards_tokens(live: LiveState) -> None:
    forward = SimpleNamespace(
        positions=torch.tensor([38, 39, 19]),
        req_pool_indices=torch.tensor([1, 2]),
        extend_seq_lens_cpu=[2, 1],
        rids=[request_id(1), request_id(2)],
    )
    given = forward.positions
    entry = forward_state.position_entries(live, forward)[1]
    assert (entry.value, entry.row, entry.prompt, entry.own, entry.foreign) == (39, 1, 1, [38], [19])
    entry.write(40)
    assert (forward.positions.tolist(), given.tolist()) == ([38, 40, 19], [38, 39, 19])


def test_a_tree_that_cannot_be_written_has_holders_and_no_nodes(live: LiveState) -> None:
    """SGLang 0.5.23 has its tree in Rust: what it holds is told by its own walk."""
    slots = live.rows[1, :32].long()
    walk = SimpleNamespace(slot_indices=slots, prev_slot_indices=torch.cat((torch.tensor([-1]), slots[:-1])))
    tree = SimpleNamespace(tree_core=SimpleNamespace(walk_for_kv_canary=lambda *_: walk))
    scheduler = SimpleNamespace(**vars(live.scheduler) | {"tree_cache": tree})
    there = LiveState(scheduler, live.batch)
    assert there.nodes() == []
    (held,) = there.cached()
    assert held.slots.tolist() == slots.tolist()
    assert standing_state.entries(Structure.TREE_NODE, there) == []


# Only 0.5.23 keeps a group's frees in the pools.
@pytest.mark.releases("0.5.23")
def test_what_a_group_holds_has_an_entry_for_each_page_of_each_pool(live: LiveState) -> None:
    allocator = live.allocator
    assert standing_state.group_entries(live) == []
    allocator.free_group_begin()
    allocator.free_segment(live.rows[1, :40].long(), start_pos=0)
    entries = standing_state.group_entries(live)
    assert sorted("full" in entry.where for entry in entries) == [False] * 3 + [True] * 3
    kept = allocator.full_attn_allocator.free_page_ids_group[0]
    before = kept.clone()
    first = next(entry for entry in entries if "full" in entry.where)
    first.write(9)
    now = allocator.full_attn_allocator.free_page_ids_group[0]
    assert [(int(was), int(new)) for was, new in zip(before, now, strict=True) if was != new] == [(first.value, 9)]
    assert torch.equal(kept, before), "whoever keeps the tensor keeps what it was"
    entries[1].drop()
    assert sum(given.numel() for given in allocator.full_attn_allocator.free_page_ids_group) == 2


def test_a_pools_size_is_wrong_in_all_that_follows_from_it(swa_allocator: Any) -> None:
    full, swa = standing_state.size_entries(swa_allocator)
    assert (full.value, full.other_space, swa.value, swa.other_space) == (160, [64], 64, [160])
    full.write(161)
    pool = swa_allocator.full_attn_allocator
    assert (pool.num_pages, pool.size, len(pool.free_pages), full.read()) == (161, 161 * PAGE, 161, 161)


def eviction_of(live: LiveState, tokens: int, segment: bool) -> standing_state.Free:
    """Return what an eviction of the first request's first `tokens` gives back, held back."""
    allocator, gone = live.allocator, live.rows[1, :tokens].long()
    free_before = live.free_pages(swa=True)
    withheld = standing_state.WithheldFrees(allocator)
    if segment:
        allocator.free_swa_segment(gone, start_pos=0)
    else:
        allocator.free_swa(gone)
    (free,) = withheld.end()
    assert live.free_pages(swa=True) == free_before
    return free


@pytest.mark.parametrize(
    "segment",
    # 0.5.13.post1 gives back by slots alone.
    [False, pytest.param(True, marks=pytest.mark.releases("0.5.23"))],
    ids=["slots", "segment"],
)
def test_an_eviction_is_held_back_and_made_as_it_was_asked_for(live: LiveState, segment: bool) -> None:
    gone = live.pages(live.rows[1, :PAGE].long(), swa=True)
    free = eviction_of(live, PAGE, segment)
    free.make()
    live.allocator.swa_attn_allocator.merge_and_sort_free()
    assert set(gone) <= set(live.free_pages(swa=True))
    assert not vars(live.allocator).keys() & {"free_swa", "free_swa_segment"}


def test_what_an_eviction_gives_back_is_named_with_its_request(live: LiveState) -> None:
    free = eviction_of(live, PAGE, segment=False)
    (entry,) = standing_state.eviction_entries(live, free.given, live.batch.reqs[0])
    of_other = live.pages(live.rows[2, :20].long(), swa=False)
    assert (entry.value, entry.row, entry.own) == (int(live.rows[1, 0]) // PAGE, 1, ())
    assert set(entry.foreign) <= set(of_other)
    assert corrupt(Defect.LOST, [entry], random.Random(1)) is not None
    assert not len(free.given.now)
    free.make()


def test_a_page_in_the_window_is_the_one_behind_what_is_evicted(live: LiveState) -> None:
    free = eviction_of(live, PAGE, segment=False)
    early = standing_state.in_the_window(live, free.given, live.batch.reqs[0])
    assert early is not None
    assert (early.value, early.row) == (int(live.rows[1, PAGE]) // PAGE, 1)
    assert len(standing_state.with_page(live, free.given, early.value)) == 2 * PAGE
    last = eviction_of(live, 2 * PAGE, segment=False)
    assert standing_state.in_the_window(live, last.given, live.batch.reqs[0]) is None


def test_who_uses_a_page_that_goes_in_anothers_place_is_known(live: LiveState) -> None:
    page = int(live.rows[2, 0]) // PAGE
    found = standing_state.user_of(live, page)
    assert found is not None
    assert (found.row, found.value) == (2, page)
    assert standing_state.user_of(live, live.free_pages(swa=False)[0]) is None
