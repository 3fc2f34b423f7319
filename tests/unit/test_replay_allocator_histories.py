"""Legal lives on SGLang's own allocator, replayed on the reference: no invariant fails and every slot is foretold."""

import pytest
import torch
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from test_probe_swa_allocator_histories import Lives

from allocator_dumps import draft_of, write
from gemma4_runtime.probes.swa_allocator_state import books_of
from gemma4_triage.replay.allocator_replay import replay_allocator
from swa_pools import PROBE, extend, make_allocator

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "need_sort"),
    [
        (4, True),
        (16, False),
        (16, True),
        (4, False),
        (1, False),
        (1, True),
    ],
)
def test_every_legal_history_holds(attach, tmp_path, page, need_sort):
    attach("trap", *PROBE)

    class Replayed(Lives):
        allocator = make_allocator(page, need_sort)

        def teardown(self):
            if books_of(self.allocator).history.seen:
                # A dump is written in a call, so that the history never ends with a `clear` that it did not see.
                extend(self.allocator, 1)
                result = replay_allocator(write(tmp_path, draft_of(self.allocator)))
                assert result.fine, (result.first, result.first_broken, result.calls)
                assert result.exact == result.compared
                assert result.agreement == "disagrees"

    run_state_machine_as_test(Replayed, settings=settings(max_examples=40, stateful_step_count=60, deadline=None))


@pytest.mark.releases("0.5.13.post1")  # 0.5.23 takes no allocation back by restoring the lists.
def test_entries_that_a_rejected_draft_left_are_no_alias(attach, tmp_path):
    """A history that begins anew finds them behind the last token of a page in use."""
    attach("trap", *PROBE)
    allocator = make_allocator(4, False)
    before = allocator.backup_state()
    extend(allocator, 8)
    allocator.restore_state(before)
    # The next SWA page to be allocated is 2, and then 1, where the rejected draft's slots 5 to 7 still lead.
    inner = allocator.swa_attn_allocator
    taken = inner.alloc(8)
    inner.free(taken[:4])
    inner.free(taken[4:])
    lens = [torch.tensor([x]) for x in (0, 0, 1, 1, -1)]
    allocator.alloc_extend_swa_tail(*lens, 1, 1)
    full, peers = allocator.full_attn_allocator.alloc(4), inner.alloc(4)
    assert peers.tolist() == [4, 5, 6, 7]
    allocator.set_full_to_swa_mapping(full, peers)
    extend(allocator, 1)
    result = replay_allocator(write(tmp_path, draft_of(allocator)))
    assert result.fine, (result.first, result.first_broken)


@pytest.mark.releases("0.5.13.post1")  # 0.5.23 takes no allocation back by restoring the lists.
def test_entries_of_a_page_that_is_loaded_back_are_no_alias(attach, tmp_path):
    """A rejected draft's first slot is one, too, where HiCache has taken the page and not mapped it yet."""
    attach("trap", *PROBE)
    allocator = make_allocator(4, False)
    full, inner = allocator.full_attn_allocator, allocator.swa_attn_allocator
    before = allocator.backup_state()
    extend(allocator, 12)
    allocator.restore_state(before)
    # Full pages 1 and 2 led to SWA pages 1 and 2; loaded back, they lead to 2 and 1.
    taken, first, second = inner.alloc(8), full.alloc(4), full.alloc(4)
    allocator.set_full_to_swa_mapping(first, taken[4:])
    allocator.set_full_to_swa_mapping(second, taken[:4])
    extend(allocator, 1)
    result = replay_allocator(write(tmp_path, draft_of(allocator)))
    assert result.fine, (result.first, result.first_broken)


def test_a_page_that_is_loaded_back_onto_another_ones_entries_is_an_alias(attach, tmp_path):
    attach("log", *PROBE)
    allocator = make_allocator(4, False)
    held = extend(allocator, 4)
    full = allocator.full_attn_allocator.alloc(4)
    allocator.set_full_to_swa_mapping(full, allocator.full_to_swa_index_mapping[held.long()])
    extend(allocator, 1)
    result = replay_allocator(write(tmp_path, draft_of(allocator)))
    assert ("pool_alias", "swa") in {(broken.invariant, broken.pool) for broken in result.first_broken}


@pytest.mark.releases("0.5.23")  # 0.5.13.post1 moves no SWA page.
def test_a_page_that_moves_to_a_node_of_the_prefix_cache_is_no_alias(attach, tmp_path):
    attach("trap", *PROBE)
    allocator = make_allocator(4, False)
    node, mine = extend(allocator, 8), extend(allocator, 8)
    allocator.free_swa_segment(node, start_pos=0)
    taken = allocator.full_to_swa_index_mapping[mine].clone()
    allocator.clear_full_to_swa_mapping(mine)
    allocator.set_full_to_swa_mapping(node, taken)
    allocator.free_full_segment(mine, start_pos=0)
    allocator.free_segment(node, start_pos=0)
    extend(allocator, 1)
    result = replay_allocator(write(tmp_path, draft_of(allocator)))
    assert result.fine, (result.first, result.first_broken)


@pytest.mark.releases("0.5.13.post1")  # 0.5.23 takes no allocation back by restoring the lists.
@pytest.mark.parametrize("pool", ["full", "swa"])
def test_a_page_that_was_freed_and_is_restored_into_use_is_lost(attach, tmp_path, pool):
    attach("log", *PROBE)
    allocator = make_allocator(4, False)
    held = extend(allocator, 8)
    state = allocator.backup_state()
    allocator.free_swa(held)
    if pool == "full":
        allocator.free(held)
    allocator.restore_state(state)
    extend(allocator, 1)
    result = replay_allocator(write(tmp_path, draft_of(allocator)))
    assert ("pool_leak", pool) in {(broken.invariant, broken.pool) for broken in result.first_broken}
