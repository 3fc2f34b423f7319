"""The scheduler's stream waits with overlap, on the device, for what a forward has read of SGLang's tables."""

from types import SimpleNamespace

import pytest
import torch

from gemma4_runtime.optimisations import schedule_stream

# What runs on a GPU alone has run with this release alone.
pytestmark = [pytest.mark.gpu, pytest.mark.releases("0.5.13.post1")]


@pytest.fixture
def streams():
    """(the scheduler's, the forward's)."""
    scheduler, forward = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(scheduler):
        schedule_stream.after_resolve_lengths(None, None, SimpleNamespace(seq_lens=torch.zeros(1, device="cuda")))
    torch.cuda.synchronize()
    yield scheduler, forward
    schedule_stream._Scheduler.stream = None


@pytest.mark.parametrize("ordered", [True, False])
def test_what_is_freed_later_is_freed_after_the_lists(streams, ordered):
    scheduler, forward = streams
    mapping, read = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(forward):
        torch.cuda._sleep(200_000_000)
        read.copy_(mapping)
        if ordered:
            schedule_stream.scheduler_comes_later()
    with torch.cuda.stream(scheduler):
        mapping.zero_()
        assert not forward.query(), "the host has not waited"
    torch.cuda.synchronize()
    assert bool(read.all()) is ordered


def test_without_overlap_or_on_one_stream_nothing_is_recorded(streams):
    scheduler, _ = streams
    with torch.cuda.stream(scheduler):
        schedule_stream.scheduler_comes_later()
    schedule_stream._Scheduler.stream = None
    schedule_stream.scheduler_comes_later()
    torch.cuda.synchronize()
