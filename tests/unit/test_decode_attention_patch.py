"""`decode-attention` around the function that Triton's backend calls: what it takes, and what stays SGLang's."""

import copy
import inspect
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.attention.triton_ops.decode_attention import decode_attention_fwd
from sglang.srt.model_executor.forward_batch_info import ForwardMode

from gemma4_runtime import release
from gemma4_runtime.fusion.paths import FUSED, PATHS
from gemma4_runtime.fusion.projection import Projected
from gemma4_runtime.optimisations import decode_attention as patch

# decode-attention is not ported.
pytestmark = pytest.mark.releases("0.5.13.post1")


class Backend:
    """What SGLang's `__init__` leaves of itself."""

    def __init__(self):
        self.seen = []
        self.decode_attention_fwd = self.shipped

    def shipped(self, *args, **kwargs):
        self.seen.append((args, kwargs))


class Rows(torch.Tensor):
    """A tensor of the CPU that says it is of a GPU: what is decided, not what is computed, is tested here."""

    is_cuda = True


def rows(*shape, dtype=torch.bfloat16):
    return torch.zeros(shape, dtype=dtype).as_subclass(Rows)


def arguments(**changed):
    given = {
        "q": rows(3, 8, 256),
        "k_buffer": rows(20, 2, 256),
        "v_buffer": rows(20, 2, 256),
        "o": rows(3, 8, 256),
        "kv_indptr": torch.tensor([0, 5, 6, 20], dtype=torch.int32),
        "kv_indices": torch.arange(20),
        "attn_logits": torch.zeros(3, 8, 8, 256),
        "attn_lse": torch.zeros(3, 8, 8),
        "num_kv_splits": torch.ones(3, dtype=torch.int32),
        "max_kv_splits": 8,
        "sm_scale": 0.5,
        "k_scale": 1.0,
        "v_scale": 1.0,
    }
    return given | changed


def call(backend, **changed):
    """Call it as `forward_decode` does: the first thirteen by position."""
    given = arguments()
    positional = [changed.get(name, value) for name, value in given.items()]
    backend.decode_attention_fwd(*positional, **{name: changed[name] for name in changed if name not in given})


@pytest.fixture
def backend(monkeypatch):
    """Return a backend after the hook, with the patch in force, and the calls of our kernel in `ours`."""
    made = Backend()
    made.ours = []
    monkeypatch.setattr(patch, "switched_on", lambda op: op == "decode-attention")
    monkeypatch.setattr(patch, "server_reason", lambda: None)
    monkeypatch.setattr(patch, "decode_attention", lambda *args, **kwargs: made.ours.append((args, kwargs)))
    monkeypatch.setattr(PATHS, "_counts", {})
    monkeypatch.setattr(release, "TritonAttnBackend", Backend)
    patch.after_init(None, made, "a model runner", skip_prefill=False)
    return made


def test_ours_is_called_with_the_lists_and_writes_sglangs_output(backend):
    given = arguments()
    backend.decode_attention_fwd(*given.values(), logit_cap=0.0, sinks=None, has_mla=False, use_pdl=True)
    ((args, kwargs),) = backend.ours
    wanted = [given[name] for name in ("q", "k_buffer", "v_buffer", "kv_indptr", "kv_indices", "sm_scale")]
    assert all(mine is other for mine, other in zip(args, wanted, strict=True))
    assert kwargs == {"out": given["o"]}
    assert not backend.seen
    assert PATHS.document() == {"decode-attention": {FUSED: 1}}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"logit_cap": 30.0}, "scores that are not scaled alone"),
        ({"sinks": torch.zeros(8)}, "scores that are not scaled alone"),
        ({"xai_temperature_len": 4}, "scores that are not scaled alone"),
        ({"has_mla": True}, "scores that are not scaled alone"),
        ({"k_scale": 0.5}, "keys and values with scales"),
        ({"q": torch.zeros(3, 8, 256)}, "queries on cpu"),
        ({"k_buffer": rows(20, 2, 256, dtype=torch.float8_e4m3fn)}, "queries of torch.bfloat16, keys of torch.float8"),
        ({"v_buffer": rows(20, 2, 128)}, "heads of 256 elements, keys of"),
        ({"q": rows(3, 8, 192), "k_buffer": rows(20, 2, 192), "v_buffer": rows(20, 2, 192)}, "heads of 192 elements"),
        ({"q": rows(3, 6, 256)}, "6 heads that read 2 key heads"),
        ({"q": rows(3, 64, 256)}, "64 heads that read 2 key heads"),
        ({"q": rows(3, 8, 512)[..., ::2]}, "heads whose elements lie apart"),
        ({"q": rows(2049, 8, 256)}, "more requests than the kernel counts"),
    ],
)
def test_what_it_does_not_take_goes_to_sglang_as_it_came(backend, changed, reason):
    call(backend, **changed)
    assert not backend.ours
    ((args, kwargs),) = backend.seen
    given = arguments() | changed
    passed = inspect.signature(decode_attention_fwd).bind(*args, **kwargs).arguments
    assert all(passed[name] is value or passed[name] == value for name, value in changed.items())
    assert set(given) <= set(passed)
    ((path, count),) = PATHS.document()["decode-attention"].items()
    assert path.startswith(reason)
    assert count == 1


def test_a_server_that_must_have_sglangs_arithmetic_has_it(backend, monkeypatch):
    monkeypatch.setattr(patch, "server_reason", lambda: "deterministic inference")
    call(backend)
    assert len(backend.seen) == 1
    assert not backend.ours
    assert PATHS.document() == {"decode-attention": {"deterministic inference": 1}}


def test_switched_off_it_leaves_no_trace(backend, monkeypatch):
    monkeypatch.setattr(patch, "switched_on", lambda op: False)
    call(backend)
    assert len(backend.seen) == 1
    assert not backend.ours
    assert PATHS.document() == {}


def leave(backend, queries):
    """Leave a front as `leave_front` does."""
    getattr(backend, patch._FRONTS).left = queries, "a front"


def test_a_front_that_was_left_goes_with_its_own_queries_once(backend):
    given = arguments()
    leave(backend, given["q"].data_ptr())
    backend.decode_attention_fwd(*given.values())
    backend.decode_attention_fwd(*given.values())
    assert [kwargs.get("front") for _, kwargs in backend.ours] == ["a front", None]
    assert PATHS.document() == {"decode-attention": {FUSED: 2}, "attention-front": {FUSED: 1}}


def test_a_front_of_a_forward_that_failed_is_no_other_ones(backend):
    leave(backend, rows(3, 8, 256).data_ptr() + 1)
    call(backend)
    call(backend)
    assert [kwargs.get("front") for _, kwargs in backend.ours] == [None, None]


def test_a_front_that_was_left_to_a_copy_of_the_backend_is_that_copys(backend):
    """YOCO's prefill attends so."""
    given = arguments()
    view = copy.copy(backend)
    leave(view, given["q"].data_ptr())
    view.decode_attention_fwd(*given.values())
    assert [kwargs.get("front") for _, kwargs in backend.ours] == ["a front"]


def test_another_backend_is_left_no_front(monkeypatch):
    """Nothing of a backend is read before it is known to be Triton's."""
    monkeypatch.setattr(patch, "switched_on", lambda op: True)
    monkeypatch.setattr(patch, "get_attn_backend", object)
    monkeypatch.setattr(PATHS, "_counts", {})
    attention = SimpleNamespace(num_heads=8, head_dim=256, is_kv_shared_layer=False, kv_shared_layer_index=None)
    projected = Projected(torch.zeros(2, 2048), torch.zeros(2, 512), torch.zeros(2, 512))
    batch = SimpleNamespace(forward_mode=ForwardMode.DECODE)
    q, left = patch.leave_front(attention, projected, torch.zeros(4, 256), torch.zeros(2, dtype=torch.long), batch)
    assert (q.shape, left) == ((2, 8, 256), False)
    assert PATHS.document() == {"attention-front": {"attention by object": 1}}
