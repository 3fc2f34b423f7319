"""Where every page is, read from requests whose own counters are wrong."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gemma4_runtime.checks.page_census import check_census
from gemma4_runtime.leak.whereabouts import read
from gemma4_runtime.releases import at_least, installed_or_base

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

WIDTH = 48


def request_of(start: int, end: int) -> Any:
    request = SimpleNamespace(req_pool_idx=1, cache_protected_len=start, kv_allocated_len=end, swa_evicted_seqlen=0)
    request.kv_committed_freed, request.kv_committed_len = False, end
    if at_least(installed_or_base(), "0.5.23"):
        from sglang.srt.managers.schedule_batch import ReqKvInfo

        request = SimpleNamespace(kv=ReqKvInfo(req_pool_idx=1, cache_protected_len=start, kv_allocated_len=end))
    return request


@pytest.mark.parametrize(
    ("start", "end", "pages"), [(0, 40, 3), (0, WIDTH + 9, 3), (-16, 40, 3), (WIDTH + 1, WIDTH + 9, 0)]
)
def test_a_request_that_claims_more_than_its_row_has_is_read_as_far_as_that(
    swa_allocator: Any, start: int, end: int, pages: int
) -> None:
    rows = torch.zeros(2, WIDTH, dtype=torch.int32)
    rows[1] = torch.arange(16, 16 + WIDTH)
    request = request_of(start, end)
    pool = SimpleNamespace(req_to_token=rows, free_slots=[], size=1)
    tree = SimpleNamespace(root_node=SimpleNamespace(children={}, value=None))
    assert read(swa_allocator, pool, tree, [request]).private_pages["full"] == pages


@pytest.mark.parametrize(
    ("entries", "told"),
    [((20,), (20, 1, 11)), ((20, 22), (20, 2, 10)), (range(30, 32), (30, 2, 0)), ((), None)],
)
def test_of_a_rows_own_entries_without_a_page_it_is_known_how_many_with_one_follow(
    swa_allocator: Any, entries: tuple[int, ...], told: tuple[int, int, int] | None
) -> None:
    rows = torch.zeros(2, WIDTH, dtype=torch.int32)
    rows[1] = torch.arange(16, 16 + WIDTH)
    rows[1, list(entries)] = 0
    request = request_of(0, 32)
    pool = SimpleNamespace(req_to_token=rows, free_slots=[], size=1)
    tree = SimpleNamespace(root_node=SimpleNamespace(children={}, value=None))
    strange = read(swa_allocator, pool, tree, [request]).stray_entries
    assert strange == ({} if told is None else {1: told})


def test_a_page_that_one_holder_has_in_two_places_is_held_twice(swa_allocator: Any) -> None:
    value = torch.cat([torch.arange(16, 32), torch.arange(48, 64), torch.arange(16, 32)])
    node = SimpleNamespace(children={}, value=value, lock_ref=0)
    pool = SimpleNamespace(req_to_token=torch.zeros(2, WIDTH, dtype=torch.int32), free_slots=[1], size=1)
    tree = SimpleNamespace(root_node=SimpleNamespace(children={0: node}, value=None))
    swa_allocator.full_attn_allocator.free_pages = torch.arange(4, swa_allocator.full_attn_allocator.size // 16 + 1)
    where = read(swa_allocator, pool, tree, []).pools[0]
    found = {one.fault.name: one.pages.tolist() for one in check_census(where)}
    assert found["HELD_TWICE"] == [1]


@pytest.mark.parametrize("locked", ["full_lock_ref", "swa_lock_ref"])
def test_a_node_that_either_pool_has_locked_is_locked(swa_allocator: Any, locked: str) -> None:
    node = SimpleNamespace(
        children={}, value=torch.arange(16, 32), **{"full_lock_ref": 0, "swa_lock_ref": 0, locked: 1}
    )
    pool = SimpleNamespace(req_to_token=torch.zeros(2, WIDTH, dtype=torch.int32), free_slots=[1], size=1)
    tree = SimpleNamespace(root_node=SimpleNamespace(children={0: node}, value=None))
    assert read(swa_allocator, pool, tree, []).locked.tolist() == [1]
