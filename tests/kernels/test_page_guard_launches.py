"""page_guard from launch to launch: what it leaves behind, checks side by side, arrays that share memory."""

import pytest
import torch
from kernel_paths import DEVICE, PATHS
from page_guard_by_hand import Build, Table
from page_guard_runs import launch_and_read, one, run

from gemma4_kernels.page_guard.launch import Findings, GuardedSlots, GuardedTable, Offence, PageGuard


@pytest.mark.parametrize("path", PATHS)
def test_a_launch_forgets_the_one_before_and_overwritten_words_are_refused_once(path):
    pages = torch.tensor([[1], [9]], dtype=torch.int32, device=DEVICE)
    lengths = torch.tensor([1, 1], device=DEVICE)
    prepared = PageGuard(DEVICE, path).prepare(one(pages), lengths, 1, contain=False)
    for page in (9, 7, 3, 3, 8, 3):
        pages[1] = page
        expected = Findings((Offence(0, 1, 0, page, 1, 4),), (1,), (), (1,)) if page >= 4 else None
        assert launch_and_read(prepared) == expected
    prepared.result.fill_(-1)
    with pytest.raises(ValueError, match="not a page_guard result"):
        launch_and_read(prepared)
    assert launch_and_read(prepared) is None


@pytest.mark.parametrize("path", PATHS)
def test_a_check_without_rows_finds_nothing(path):
    assert not any(run(Build([Table([], 4, 3)], []), path)[2])


@pytest.mark.parametrize("path", PATHS)
def test_two_prepared_checks_are_in_flight_together(path):
    """Draft and verify of one step: neither overwrites what the host has yet to read of the other."""
    guard = PageGuard(DEVICE, path)
    pages = torch.tensor([[1, 7], [3, 4]], dtype=torch.int32, device=DEVICE)
    out_cache_loc = torch.tensor([16, 99], device=DEVICE)
    lengths = torch.tensor([2, 1], device=DEVICE)
    draft = guard.prepare([GuardedTable(pages, 5)], lengths, 1, contain=True)
    verify = guard.prepare([GuardedSlots(out_cache_loc.view(2, 1), 50)], None, 16, contain=True)
    for first, second in [(7, 99), (2, 20), (2, 99), (8, 20)]:
        pages[0, 1], out_cache_loc[1] = first, second
        draft.launch()
        both = launch_and_read(verify), draft.read()
        values = [[offence.value for offence in found.offences] if found else [] for found in reversed(both)]
        assert values == [[first] if first >= 5 else [], [second] if second >= 50 else []]
        contained = (first if first < 5 else 0, second if second < 50 else 0)
        assert (pages[0, 1].item(), out_cache_loc[1].item()) == contained


@pytest.mark.parametrize("path", PATHS)
def test_arrays_may_share_memory_when_nothing_is_contained(path):
    pages = torch.tensor([[1, 5, 9]], dtype=torch.int32, device=DEVICE)
    lengths = torch.tensor([3], device=DEVICE)
    guard = PageGuard(DEVICE, path)
    arrays = [GuardedTable(pages, 100), GuardedTable(pages, 6), GuardedTable(pages, 3)]
    found = guard.check(arrays, lengths, 1, contain=False)
    assert found == Findings((Offence(1, 0, 2, 9, 1, 6), Offence(2, 0, 1, 5, 1, 3, 2)), (0, 1, 2), (), (0,))
    for refused, message in [
        (arrays, "arrays 0 and 1 share memory"),
        ([arrays[0], GuardedSlots(pages[0, 2:], 9, indptr=lengths.new_zeros(2))], "arrays 0 and 1 share memory"),
        ([GuardedTable(pages[:, :1].expand(1, 3), 3)], "entries that share memory"),
        ([GuardedSlots(pages[0, :1].expand(3), 3, indptr=lengths.new_zeros(2))], "entries that share memory"),
    ]:
        with pytest.raises(ValueError, match=message):
            guard.check(refused, lengths, 1, contain=True)
