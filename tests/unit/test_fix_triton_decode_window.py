"""The keys that SGLang's own Triton backend lists for its sliding layers, without and with the fix.

That the engine then agrees with transformers is shown in tests/engine/test_diff_live.py.
"""

import pytest
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from slot_list_backends import PAGE, WINDOW, batch, extend, fill, replay_batch, slots_of, triton_backends

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

FIX = "triton-decode-window"
# WINDOW is what the backend holds: the distance to the oldest key, one less than the number of keys.
KEYS = WINDOW + 1
ROWS = 4


@pytest.fixture
def make(swa_allocator, monkeypatch):
    with triton_backends(swa_allocator, monkeypatch) as maker:
        yield maker


@pytest.fixture
def with_fix(attach, make):
    # The host leaf stands in for allocation kernels that the interpreter runs element by element.
    attach("off", "host-alloc-kernels", FIX)
    return make()


@pytest.fixture
def without_fix(attach, make):
    attach("off", "host-alloc-kernels")
    return make()


def decode_list(backend, lengths, graph=False):
    """Return per request the SWA slots that a decode's sliding layers read."""
    forward_batch = batch(lengths, locations=torch.zeros(len(lengths), dtype=torch.int64))
    if graph:
        backend.init_forward_metadata_out_graph(forward_batch)
        indices, starts = backend.cuda_graph_window_kv_indices, backend.window_kv_indptr[: len(lengths) + 1]
    else:
        backend.init_forward_metadata(forward_batch)
        indices, starts = backend.forward_metadata.window_kv_indices, backend.forward_metadata.window_kv_indptr
    return [indices[starts[i] : starts[i + 1]].tolist() for i in range(len(lengths))]


def newest(backend, row, length, keys):
    """Return the SWA slots of the newest `keys` of the `length` tokens of a request."""
    slots = slots_of(backend, row, *range(max(length - keys, 0), length))
    return backend.token_to_kv_pool.translate_loc_from_full_to_swa(slots).tolist()


# One token less than the window, as many, one more, and far past it.
LENGTHS = [WINDOW, KEYS, KEYS + 1, 100]


def test_without_the_fix_an_eager_decode_misses_the_oldest_key(without_fix):
    fill(without_fix, LENGTHS)
    expected = [newest(without_fix, row, length, KEYS - 1) for row, length in enumerate(LENGTHS, 1)]
    assert decode_list(without_fix, LENGTHS) == expected
    assert [len(row) for row in expected] == [WINDOW] * 4


def test_with_the_fix_an_eager_decode_sees_the_window(with_fix):
    fill(with_fix, LENGTHS)
    expected = [newest(with_fix, row, length, KEYS) for row, length in enumerate(LENGTHS, 1)]
    assert decode_list(with_fix, LENGTHS) == expected
    assert [len(row) for row in expected] == [WINDOW, KEYS, KEYS, KEYS]


def test_without_the_fix_a_graph_misses_the_oldest_key(without_fix):
    without_fix.init_cuda_graph_state(ROWS, ROWS)
    fill(without_fix, LENGTHS)
    assert [len(row) for row in decode_list(without_fix, LENGTHS, graph=True)] == [WINDOW] * 4


def test_with_the_fix_a_full_batch_fits_into_the_graphs_buffer(with_fix):
    """Every row of the largest graph past the window: one key per row more than SGLang's buffer holds."""
    with_fix.init_cuda_graph_state(ROWS, ROWS)
    assert len(with_fix.cuda_graph_window_kv_indices) == ROWS * KEYS
    lengths = [40, 60, 80, 100]
    fill(with_fix, lengths)
    expected = [newest(with_fix, row, length, KEYS) for row, length in enumerate(lengths, 1)]
    assert decode_list(with_fix, lengths, graph=True) == expected


def test_with_the_fix_a_replay_lists_what_the_eager_build_does(with_fix):
    with_fix.init_cuda_graph_state(ROWS, ROWS)
    captured = batch([1] * 2, rows=[0] * 2, locations=torch.zeros(2, dtype=torch.int64))
    with_fix.kept_static = {2: captured.out_cache_loc}
    with_fix.init_forward_metadata_out_graph(captured, in_capture=True)
    fill(with_fix, [33, 90])
    replay_batch(with_fix, batch([33, 90], locations=torch.zeros(2, dtype=torch.int64)))
    starts = with_fix.window_kv_indptr[:3].tolist()
    assert starts == [0, KEYS, 2 * KEYS]
    replayed = with_fix.cuda_graph_window_kv_indices[: starts[-1]].tolist()
    first, second = decode_list(with_fix, [33, 90])
    assert replayed == first + second


@pytest.mark.parametrize("patches", [(), (FIX,)], ids=["without", "with"])
def test_verify_and_extend_keep_their_lists(attach, make, patches):
    """Their own keys come on top of the list, and the extend kernel masks by distance."""
    attach("off", "host-alloc-kernels", *patches)
    backend = make()
    fill(backend, [100])
    new = slots_of(backend, 1, *range(96, 100))
    backend.init_forward_metadata(batch([96], ForwardMode.TARGET_VERIFY, locations=new))
    assert backend.forward_metadata.window_kv_indices.tolist() == newest(backend, 1, 96, KEYS - 1)
    backend.init_forward_metadata(extend(backend, 3 * PAGE, 20))
    assert backend.forward_metadata.window_kv_indices.tolist() == newest(backend, 1, 3 * PAGE, KEYS - 1)
    assert backend.sliding_window_size == WINDOW


def test_a_backend_without_a_window_is_left_alone(attach, make):
    attach("off", "host-alloc-kernels", FIX)
    backend = make(window=None)
    backend.init_cuda_graph_state(ROWS, ROWS)
    fill(backend, [50])
    backend.init_forward_metadata(batch([50], locations=torch.zeros(1, dtype=torch.int64)))
    assert backend.forward_metadata.window_kv_indices is None
