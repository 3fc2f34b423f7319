"""`free-swa-pages`: SGLang's own allocator, and what its mapping says after SWA pages were given back."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swa_pools import extend, make_allocator

# 0.5.14 and later have it: mem_cache/allocator/swa.py.
pytestmark = pytest.mark.releases("0.5.13.post1")

PAGE = 16


@pytest.fixture
def paged(attach):
    attach("off", "host-alloc-kernels", "free-swa-pages")


def pages_of_live_entries(allocator):
    mapping = allocator.full_to_swa_index_mapping[:-1]
    return set((mapping[mapping > 0] // PAGE).tolist())


@pytest.mark.parametrize("tokens", [20, 60], ids=["few slots", "as many that the whole mapping is looked through"])
def test_slots_behind_the_last_token_lead_nowhere(attach, tokens):
    """A request that had slots allocated ahead of its last token leaves them so."""

    def left():
        allocator = make_allocator(PAGE)
        slots = extend(allocator, tokens)
        allocator.free_swa(slots[: tokens - 2])
        return pages_of_live_entries(allocator), allocator.swa_available_size()

    attach("off", "host-alloc-kernels")
    stale, free = left()
    assert len(stale) == 1
    attach("off", "host-alloc-kernels", "free-swa-pages")
    assert left() == (set(), free)


def test_pages_of_one_token_and_empty_calls_are_sglangs(attach):
    attach("off", "free-swa-pages")
    allocator = make_allocator(1)
    slots = allocator.alloc(3)
    allocator.free_swa(slots[:0])
    allocator.free_swa(slots[1:2])
    assert (allocator.full_to_swa_index_mapping[slots] > 0).tolist() == [True, False, True]


@pytest.mark.parametrize("before", [0, 4 * PAGE])
def test_a_second_swa_page_of_a_full_page_stays(attach, before):
    attach("off", "host-alloc-kernels", "free-swa-pages")
    allocator = make_allocator(PAGE)
    slots, other = extend(allocator, before + PAGE), extend(allocator, PAGE)
    mapping = allocator.full_to_swa_index_mapping
    gone, second = slots[: before + 8], slots[before + 8 :]
    mapping[second] = mapping[other[:8]]
    kept, sentinel = mapping[second].clone(), mapping[-1].item()
    allocator.free_swa(gone)
    assert not mapping[gone].any()
    assert torch.equal(mapping[second], kept)
    assert mapping[-1] == sentinel


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=4), data=st.data())
def test_no_entry_leads_into_a_free_page(paged, lengths, data):
    allocator = make_allocator(PAGE)
    held = [extend(allocator, length) for length in lengths]
    for slots in held:
        allocator.free_swa(slots[: data.draw(st.integers(0, len(slots)))])
        free = set(allocator.swa_attn_allocator.free_pages.tolist())
        assert not pages_of_live_entries(allocator) & free
