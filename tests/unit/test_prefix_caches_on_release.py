"""What a prefix cache holds, read from SGLang's own unified cache, whose tree is in Rust."""

from array import array

import pytest
import torch

# The older release has no unified cache; test_leak_whereabouts.py reads its own.
pytestmark = pytest.mark.releases("0.5.23")

PAGE = 16


@pytest.fixture
def cache(swa_allocator):
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    rows = ReqToTokenPool(4, 256, "cpu", enable_memory_saver=False)
    params = CacheInitParams(False, rows, swa_allocator, PAGE, sliding_window_size=32)
    params.tree_components = (ComponentType.FULL, ComponentType.SWA)
    return UnifiedRadixCache(params)


def pages(allocator, count):
    """Return the slots of so many new pages, int64 [count * PAGE]."""
    none, size = torch.zeros(1, dtype=torch.int64), torch.tensor([count * PAGE])
    return allocator.alloc_extend(none, none, size, size, torch.tensor([-1]), count * PAGE)


def put(cache, tokens, slots):
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    cache.insert(InsertParams(key=RadixKey(array("q", tokens), None), value=slots))


def test_every_slot_is_in_one_run_and_a_branch_begins_a_run(cache, swa_allocator):
    from gemma4_runtime.release.prefix_caches import runs_of, unreadable_cache

    assert unreadable_cache(cache) == ""
    assert runs_of(cache) == []
    first, other = pages(swa_allocator, 4), pages(swa_allocator, 2)
    put(cache, range(4 * PAGE), first)
    put(cache, [*range(2 * PAGE), *range(900, 900 + 2 * PAGE)], torch.cat((first[: 2 * PAGE], other)))
    runs = runs_of(cache)
    assert sorted(torch.cat([run.value for run in runs]).tolist()) == sorted(torch.cat((first, other)).tolist())
    assert len(runs) >= 2
    assert not any(run.swa_tombstone or run.locked for run in runs)


def test_what_is_locked_is_told(cache, swa_allocator):
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    from gemma4_runtime.release.prefix_caches import runs_of

    put(cache, range(4 * PAGE), pages(swa_allocator, 4))
    matched = cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", range(4 * PAGE)), None)))
    cache.inc_lock_ref(matched.last_device_node)
    assert all(run.locked for run in runs_of(cache))


def test_the_path_of_a_request_is_what_its_nodes_hold_in_the_order_of_its_tokens(cache, swa_allocator):
    from types import SimpleNamespace

    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    from gemma4_runtime.release.prefix_caches import path_slots

    def slots_of(tokens):
        matched = cache.match_prefix(MatchPrefixParams(key=RadixKey(array("q", tokens), None)))
        return path_slots(cache, SimpleNamespace(last_node=matched.last_device_node))

    first, other = pages(swa_allocator, 4), pages(swa_allocator, 2)
    branch = [*range(2 * PAGE), *range(900, 900 + 2 * PAGE)]
    put(cache, range(4 * PAGE), first)
    # Splits the node: its second half and the branch have the first half in common.
    put(cache, branch, torch.cat((first[: 2 * PAGE], other)))
    assert slots_of(range(4 * PAGE)).tolist() == first.tolist()
    assert slots_of(branch).tolist() == torch.cat((first[: 2 * PAGE], other)).tolist()
    assert slots_of(range(5000, 5000 + PAGE)).tolist() == []
    assert path_slots(cache, SimpleNamespace(last_node=None)) is None
    assert path_slots(cache, SimpleNamespace(last_node=1 << 40)) is None


def test_what_the_cache_gives_back_as_it_takes_newer_pages_is_nobodys_loss(cache, swa_allocator, attach, monkeypatch):
    """The window's side of the cached pages is gone: a request that has these tokens anew brings pages for them."""
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams

    from gemma4_runtime.checks.page_ledger import LastEvent, Site
    from gemma4_runtime.leak.ledger import BY, SITE, ledger_of
    from gemma4_runtime.release.prefix_caches import runs_of

    monkeypatch.setenv("GEMMA4_TRIAGE_LEAK", "dump")
    attach("log", "leak-ledger", "host-alloc-kernels")
    ledger = ledger_of(swa_allocator)
    for request in (1, 2, 3):
        slots = pages(swa_allocator, 4)
        ledger.owned(slots, [request], [1], [slots.numel()])
        who, site = BY.set((request, 1)), SITE.set(Site.CACHE_UNFINISHED_REQ)
        put(cache, range(4 * PAGE), slots)
        BY.reset(who)
        SITE.reset(site)
        ledger.log.drain()
        assert not ledger.anomalies
        cached = torch.cat([run.value[::PAGE] // PAGE for run in runs_of(cache)])
        assert (ledger.pools["full"].last_event[cached] == LastEvent.GIVEN).all()
        freed = [event for event in ledger.recent if event.get("by_request_slot") == request]
        assert [event["kind"] for event in freed] == ["freed"] * (request > 1)
        # The leaf loses both sides of its second half, the first half that of the window.
        cache.evict(EvictParams(num_tokens=0, swa_num_tokens=4 * PAGE))
