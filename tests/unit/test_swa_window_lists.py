"""`swa-window-lists` in SGLang's own Triton backend, on real pools: its lists are SGLang's; what it leaves alone."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.attention import triton_backend
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from gemma4_runtime.fusion.paths import PATHS
from gemma4_runtime.optimisations import swa_window_lists
from gemma4_runtime.optimisations.swa_window_lists import around_window_buffer
from slot_list_backends import PAGE, WINDOW, batch, extend, fill, slots_of, triton_backends

# swa-window-lists is not ported: 0.5.23's translator makes the list.
pytestmark = pytest.mark.releases("0.5.13.post1")

PATCH = "swa-window-lists"
OWN_WAY = "a SimpleNamespace that translates in its own way"
ROWS = 4
LENGTHS = [WINDOW - 1, WINDOW, WINDOW + 1, 100]


@pytest.fixture
def make(swa_allocator, monkeypatch):
    with triton_backends(swa_allocator, monkeypatch) as maker:
        yield maker


@pytest.fixture
def both(attach, make, monkeypatch):
    """Return a function of `use` to what use(backend) returns with SGLang's lines and with ours, on one backend."""
    monkeypatch.setenv("GEMMA4_TRIAGE_HOST_ENGINE", "1")
    attach("off", "host-alloc-kernels", PATCH)
    backend, ours = make(), triton_backend.update_sliding_window_buffer
    backend.init_cuda_graph_state(ROWS, ROWS)

    def both(use):
        with monkeypatch.context() as only:
            only.setattr(triton_backend, "update_sliding_window_buffer", ours.__wrapped__)
            shipped = use(backend)
        before = taken()
        patched = use(backend)
        assert taken() == before + 1
        return shipped, patched

    both.backend = backend
    return both


def taken(path="reference"):
    return PATHS.document().get(PATCH, {}).get(path, 0)


def lists(indices, starts, requests):
    return [indices[starts[i] : starts[i + 1]].tolist() for i in range(requests)]


def eager(forward_batch):
    def use(backend):
        backend.init_forward_metadata(forward_batch)
        found = backend.forward_metadata
        splits = None if found.window_num_kv_splits is None else found.window_num_kv_splits.tolist()
        offsets = None if found.window_kv_offsets is None else found.window_kv_offsets.tolist()
        rows = forward_batch.batch_size
        return lists(found.window_kv_indices, found.window_kv_indptr, rows), splits, offsets

    return use


def replayed(forward_batch):
    def use(backend):
        for buffer in (backend.cuda_graph_window_kv_indices, backend.cuda_graph_window_kv_offsets):
            buffer.fill_(-7)
        backend.init_forward_metadata_out_graph(forward_batch)
        rows = forward_batch.batch_size
        found = lists(backend.cuda_graph_window_kv_indices, backend.window_kv_indptr, rows)
        offsets = backend.cuda_graph_window_kv_offsets.tolist()
        return found, offsets, backend.cuda_graph_window_num_kv_splits[:rows].tolist()

    return use


def decode(lengths, **changes):
    return batch(lengths, locations=torch.zeros(len(lengths), dtype=torch.int64), **changes)


@pytest.mark.parametrize("use", [eager, replayed])
def test_a_decode(both, use):
    fill(both.backend, LENGTHS)
    shipped, ours = both(use(decode(LENGTHS)))
    assert ours == shipped
    newest = slots_of(both.backend, 4, *range(100 - WINDOW, 100))
    assert ours[0][3] == both.backend.token_to_kv_pool.translate_loc_from_full_to_swa(newest).tolist()


@pytest.mark.parametrize("use", [eager, replayed])
def test_a_verify(both, use):
    fill(both.backend, LENGTHS)
    before = [length - 4 for length in LENGTHS]
    new = torch.cat([slots_of(both.backend, i, *range(n, n + 4)) for i, n in enumerate(before, 1)])
    shipped, ours = both(use(batch(before, ForwardMode.TARGET_VERIFY, locations=new)))
    assert ours == shipped


def test_an_extend(both):
    fill(both.backend, [100])
    shipped, ours = both(eager(extend(both.backend, 3 * PAGE, 20)))
    assert ours == shipped
    assert len(ours[0][0]) == WINDOW


def test_a_request_that_has_just_begun(both):
    shipped, ours = both(eager(extend(both.backend, 0, 20)))
    assert ours == shipped
    assert ours[0] == [[]]


def test_one_pool_for_all_layers(both):
    """Slots then stay those of the requests' rows."""
    backend = both.backend
    fill(backend, LENGTHS)
    backend.token_to_kv_pool, backend.use_sliding_window_kv_pool = backend.token_to_kv_pool.full_kv_pool, False
    shipped, ours = both(eager(decode(LENGTHS)))
    assert ours == shipped
    assert ours[0][3] == slots_of(backend, 4, *range(100 - WINDOW, 100)).tolist()


@pytest.mark.parametrize("use", [eager, replayed])
def test_the_schedulers_stream_waits_for_the_lists(both, monkeypatch, use):
    """The host does not wait for them any more; what is freed while they are made would be seen in them."""
    calls = []
    monkeypatch.setattr(swa_window_lists, "scheduler_comes_later", lambda: calls.append(1))
    fill(both.backend, LENGTHS)
    use(decode(LENGTHS))(both.backend)
    assert calls == [1]


class OtherPool(SWAKVPool):
    """Translates in a way of its own."""

    def translate_loc_from_full_to_swa(self, kv_indices):
        return kv_indices * 0 + 5


def test_a_pool_that_translates_otherwise_is_asked(both):
    backend = both.backend
    fill(backend, LENGTHS)
    backend.token_to_kv_pool.__class__ = OtherPool
    reason = "a OtherPool that translates in its own way"
    before = taken(reason)
    found, *_ = eager(decode(LENGTHS))(backend)
    assert taken(reason) == before + 1
    assert set(found[3]) == {5}


def test_a_list_with_too_little_room_is_sglangs(both):
    backend = both.backend
    fill(backend, [3, 3])
    backend.cuda_graph_window_kv_indices = torch.zeros(2 * WINDOW - 1, dtype=torch.int64)
    reason = "tensors that the kernel does not take"
    before = taken(reason)
    replayed(decode([3, 3]))(backend)
    assert taken(reason) == before + 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"seq_lens": torch.tensor([3, 3, 3])}, "other lengths than those of the batch"),
        ({"token_to_kv_pool": SimpleNamespace(full_to_swa_index_mapping=torch.arange(9))}, OWN_WAY),
        ({"token_to_kv_pool": SimpleNamespace(translate_loc_from_full_to_swa=torch.neg)}, OWN_WAY),
        ({"req_to_token": torch.zeros(3, 40, dtype=torch.int64)}, "tensors that the kernel does not take"),
        ({"window_kv_indptr": torch.zeros(3, dtype=torch.int64)}, "tensors that the kernel does not take"),
    ],
)
def test_what_goes_to_sglangs_own_lines(attach, monkeypatch, change, reason):
    monkeypatch.setenv("GEMMA4_TRIAGE_HOST_ENGINE", "1")
    attach("off", "host-alloc-kernels", PATCH)
    arguments = {
        "window_kv_indptr": torch.zeros(3, dtype=torch.int32),
        "req_to_token": torch.zeros(3, 40, dtype=torch.int32),
        "sliding_window_size": WINDOW,
        "seq_lens": torch.tensor([3, 3]),
        "req_pool_indices": torch.tensor([1, 2]),
        "bs": 2,
        "device": "cpu",
        "token_to_kv_pool": None,
    }
    calls, before = [], taken(reason)
    around_window_buffer(lambda *given: calls.append(given), **(arguments | change))
    assert taken(reason) == before + 1
    assert [len(given) for given in calls] == [9]


def test_a_cpu_that_is_no_host_engine_has_sglangs_lines(attach, make):
    attach("off", "host-alloc-kernels", PATCH)
    backend = make()
    fill(backend, LENGTHS)
    before = taken("lengths on cpu")
    eager(decode(LENGTHS))(backend)
    assert taken("lengths on cpu") == before + 1
