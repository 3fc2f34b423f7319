"""The fault `alloc-on-one-pool`: once, on whole pages."""

import pytest
import torch

from swa_pools import make_swa_allocator

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")


def decode(allocator, length):
    """Return one token for a request of `length` tokens, which needs a page."""
    lengths = torch.tensor([length + 1])
    return allocator.alloc_decode(lengths, lengths, torch.tensor([length + 15]))


def test_the_full_page_is_lost_once(attach):
    attach("off", "alloc-on-one-pool", "host-alloc-kernels")
    allocator = make_swa_allocator(640, 320, 16)
    assert decode(allocator, 16) is None
    assert (allocator.full_available_size(), allocator.swa_available_size()) == (640 - 16, 320)
    assert decode(allocator, 16) is not None
