"""trtllm_mha's metadata under spec v2: built from a bound, it leads to the slots that lengths would lead to."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.managers.overlap_utils import FutureMap
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from gemma4_runtime.optimisations import mtp_v2_lengths
from trtllm_world import PAGE, batch, fill, trtllm_backend

# 0.5.14 and later have spec v2 themselves: mtp-v2 and what it brings are for 0.5.13.post1.
pytestmark = pytest.mark.releases("0.5.13.post1")

LENGTHS = [60, 17, 33]
CONTEXT = 256


def scheduled(allocated, verifies=True, known=None):
    """Say what FutureMap is given of a batch; `allocated` per request."""
    indices = torch.arange(1, len(allocated) + 1) if verifies else None
    return SimpleNamespace(
        spec_info=SimpleNamespace(future_indices=indices),
        reqs=[SimpleNamespace(kv_allocated_len=slots) for slots in allocated],
        model_config=SimpleNamespace(context_len=CONTEXT),
        seq_lens=torch.tensor(LENGTHS),
        seq_lens_cpu=known,
        seq_lens_sum=None,
        req_pool_indices_cpu=indices,
    )


@pytest.fixture
def resolve(attach):
    """Return what resolves a batch as the scheduler does before it runs it; afterwards no batch is left."""
    attach("off", "host-alloc-kernels", "mtp-v2")

    def resolve(given, needs=False):
        future_map = object.__new__(FutureMap)
        future_map.needs_cpu_seq_lens, future_map.publish_ready = needs, None
        future_map.fwd_prepare_d2h_stream = None
        future_map.new_seq_lens_buf = torch.tensor([0, *LENGTHS])
        future_map.resolve_seq_lens_cpu(given)
        return given

    yield resolve
    resolve(scheduled([], verifies=False))


@pytest.fixture
def backend(resolve, swa_allocator):
    made = trtllm_backend(swa_allocator)
    fill(made, swa_allocator, [length + 12 for length in LENGTHS])
    made.init_cuda_graph_state(4, 16)
    return made


def verify():
    made = batch(LENGTHS, ForwardMode.TARGET_VERIFY, tokens=4)
    made.spec_info = SimpleNamespace()
    return made


def live_pages(table, written):
    return [row[: -(-(length + written) // PAGE)].tolist() for row, length in zip(table, LENGTHS, strict=True)]


def tables(metadata, written):
    return live_pages(metadata.page_table, written), live_pages(metadata.swa_page_table, written)


@pytest.mark.parametrize(("make", "written"), [(lambda: batch(LENGTHS), 0), (verify, 4)], ids=["decode", "verify"])
def test_an_eager_build(backend, resolve, make, written):
    backend.init_forward_metadata(make())
    exact = backend.forward_metadata
    resolve(scheduled([length + 12 for length in LENGTHS]))
    unknown = make()
    unknown.seq_lens_cpu = None
    backend.init_forward_metadata(unknown)
    found = backend.forward_metadata
    assert unknown.seq_lens_cpu is None
    assert found.cache_seqlens_int32.tolist() == exact.cache_seqlens_int32.tolist()
    assert found.max_seq_len_k == max(LENGTHS) + 12 + written
    assert tables(found, written) == tables(exact, written)


@pytest.mark.parametrize(("make", "written"), [(lambda: batch(LENGTHS), 0), (verify, 4)], ids=["decode", "verify"])
def test_a_replay_whose_buffer_holds_an_earlier_batchs_lengths(backend, resolve, make, written):
    first = make()
    first.seq_lens_cpu = None
    backend.init_forward_metadata_out_graph(first, in_capture=True)
    backend.init_forward_metadata_out_graph(make())
    exact = tables(backend.forward_metadata, written)
    for table in (backend.forward_metadata.page_table, backend.forward_metadata.swa_page_table):
        table.fill_(-7)
    resolve(scheduled([length + 12 for length in LENGTHS]))
    stale = make()
    stale.seq_lens_cpu = torch.ones(len(LENGTHS), dtype=torch.int64)
    backend.init_forward_metadata_out_graph(stale)
    assert tables(backend.forward_metadata, written) == exact
    assert stale.seq_lens_cpu.tolist() == [1] * len(LENGTHS)


def test_a_bound_is_of_its_batch_alone(backend, resolve):
    """A prefill after it, and a server that has lengths on the host, are built from what they know."""
    resolve(scheduled([72, 29, 45]))
    for known in (scheduled([], verifies=False), scheduled([72, 29, 45])):
        resolve(known, needs=True)
        backend.init_forward_metadata(batch(LENGTHS))
        assert backend.forward_metadata.max_seq_len_k == max(LENGTHS)


def test_a_batch_without_requests_has_no_bound(backend, resolve):
    resolve(scheduled([72, 29, 45]))
    empty = scheduled([])
    empty.seq_lens = torch.zeros(0, dtype=torch.int64)
    resolve(empty)
    backend.init_forward_metadata(batch(LENGTHS))
    assert backend.forward_metadata.max_seq_len_k == max(LENGTHS)


def test_a_capture_builds_from_its_own_lengths(backend, resolve):
    resolve(scheduled([72, 29, 45]))
    captured = batch([1] * 3, rows=[0] * 3)
    backend.init_forward_metadata_out_graph(captured, in_capture=True)
    assert backend.forward_metadata.max_seq_len_k == 1


def test_a_request_that_ends_at_the_contexts_end_is_read_whole(backend, resolve):
    """Its last step's tokens lie behind the context, in a row that has room for them."""
    resolve(scheduled([CONTEXT + 9, 29, 45]))
    backend.init_forward_metadata(batch(LENGTHS))
    assert backend.forward_metadata.max_seq_len_k == CONTEXT + 9


@pytest.mark.parametrize("known", [True, False])
def test_the_schedulers_stream_waits_for_every_build_but_a_captures(backend, resolve, monkeypatch, known):
    """It waits with lengths on the host too: the tables are made on the device, behind what it still has to do."""
    calls = []
    monkeypatch.setattr(mtp_v2_lengths, "scheduler_comes_later", lambda: calls.append(1))
    resolve(scheduled([72, 29, 45]), needs=known)
    backend.init_forward_metadata_out_graph(batch(LENGTHS), in_capture=True)
    assert calls == []
    backend.init_forward_metadata(batch(LENGTHS))
    backend.init_forward_metadata_out_graph(batch(LENGTHS))
    assert calls == [1, 1]
