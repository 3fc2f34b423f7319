"""The lock-step swap on SGLang's own backends and context managers: what each site does with the fix and without."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.layers.attention.trtllm_mha_backend import TRTLLMHAAttnBackend
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.speculative import frozen_kv_mtp_cuda_graph_runner, frozen_kv_mtp_utils

from gemma4_runtime.fixes.swa_state_swap import iter_leaves, unwrap_hybrid
from published import IN_A_CONTEXT, published
from trtllm_world import hybrid_of

if IN_A_CONTEXT:
    from sglang.srt.speculative import frozen_kv_mtp_worker_v2 as worker_module
    from sglang.srt.speculative.frozen_kv_mtp_worker_v2 import FrozenKVMTPDraftWorker as Worker
else:
    from sglang.srt.speculative import frozen_kv_mtp_worker as worker_module
    from sglang.srt.speculative.frozen_kv_mtp_worker import FrozenKVMTPWorker as Worker

pytestmark = pytest.mark.releases("0.5.13.post1", "0.5.23")

SLIDING = 1


@pytest.fixture
def dummy_pool():
    """Return the assistant's own pool, as FROZEN_KV_MTP makes it: 64 tokens, one layer, no sliding window."""
    return MHATokenToKVPool(64, 16, torch.float32, 2, 8, 1, "cpu", False)


def trtllm(pool, **fields):
    made = object.__new__(TRTLLMHAAttnBackend)
    # FlashInfer's constructor keeps the names of its kernels under the names that Hybrid uses for its children.
    defaults = {"prefill_backend": "fa2", "decode_backend": "fa2", "_swa_kv_pool": None, "page_size": 16}
    vars(made).update(defaults | {"token_to_kv_pool": pool} | fields)
    return made


@pytest.fixture
def mixed(dummy_pool):
    """Return a backend that prefills with one child and decodes with another."""
    with hybrid_of(dummy_pool, trtllm(dummy_pool), trtllm(dummy_pool)) as made:
        yield made


def state(backend):
    nodes = [backend, *iter_leaves(backend)]
    return [(n.token_to_kv_pool, getattr(n, "_swa_kv_pool", None)) for n in nodes]


@pytest.fixture
def context(swa_allocator):
    return SimpleNamespace(target_token_to_kv_pool=swa_allocator.get_kvcache())


@pytest.fixture(params=["frozen_kv_target_view", "target_kv_pool_view"])
def view(request):
    # Called through the worker module, which imported it by name: that is the binding the engine uses.
    return lambda *args: getattr(worker_module, request.param)(*args)


def test_leaves_are_found_once_and_kernel_names_are_not_leaves(dummy_pool, mixed):
    leaf = trtllm(dummy_pool)
    assert list(iter_leaves(leaf)) == [leaf]
    assert list(iter_leaves(mixed)) == [mixed.prefill_backend, mixed.decode_backend]
    mixed.decode_backend = mixed.prefill_backend
    assert list(iter_leaves(mixed)) == [mixed.prefill_backend]
    multi = trtllm(dummy_pool, attn_backends=[leaf, mixed])
    assert list(iter_leaves(multi)) == [leaf, mixed.prefill_backend]


@pytest.mark.parametrize("name", ["prefill_backend", "decode_backend", "full_attn_backend", "primary"])
@pytest.mark.parametrize("in_list", [None, "attn_backends", "children"])
def test_every_way_of_holding_a_child(dummy_pool, name, in_list):
    child = trtllm(dummy_pool)
    parent = trtllm(dummy_pool, **({in_list: [child]} if in_list else {name: child}))
    assert list(iter_leaves(parent)) == [child]


def test_without_the_fix_leaves_keep_the_dummy_pool(view, mixed, context):
    with view(SimpleNamespace(spec_info="kept"), context, mixed):
        assert mixed.token_to_kv_pool is context.target_token_to_kv_pool
        with pytest.raises(IndexError):
            mixed.decode_backend.token_to_kv_pool.get_kv_buffer(SLIDING)


def test_with_the_fix_every_leaf_follows_and_comes_back(attach, view, mixed, context):
    attach("off", "swa-state-swap")
    backend = mixed
    before = state(backend)
    target = context.target_token_to_kv_pool
    batch = SimpleNamespace(spec_info="kept")
    with view(batch, context, backend):
        assert backend.token_to_kv_pool is target
        for leaf in iter_leaves(backend):
            assert leaf.token_to_kv_pool is leaf._swa_kv_pool is target
            leaf.token_to_kv_pool.get_kv_buffer(SLIDING)
    assert all(a is b for old, new in zip(before, state(backend), strict=True) for a, b in zip(old, new, strict=True))
    assert batch.spec_info == "kept"


def test_an_exception_inside_restores_too(attach, view, dummy_pool, mixed, context):
    attach("off", "swa-state-swap")
    backend = mixed
    with pytest.raises(RuntimeError, match="from inside"), view(SimpleNamespace(spec_info=None), context, backend):
        raise RuntimeError("from inside")
    assert {id(pool) for pool, _ in state(backend)} == {id(dummy_pool)}
    assert {swa for _, swa in state(backend)} == {None}


def test_a_target_without_a_sliding_window_clears_the_swa_state(attach, view, dummy_pool, swa_allocator):
    attach("off", "swa-state-swap")
    backend = trtllm(dummy_pool, _swa_kv_pool=swa_allocator.get_kvcache())
    plain = SimpleNamespace(target_token_to_kv_pool=MHATokenToKVPool(64, 16, torch.float32, 2, 8, 3, "cpu", False))
    with view(SimpleNamespace(spec_info=None), plain, backend):
        assert backend._swa_kv_pool is None
    assert backend._swa_kv_pool is swa_allocator.get_kvcache()


def test_an_unbound_model_is_still_sglangs_error(attach, view, dummy_pool):
    attach("off", "swa-state-swap")
    with pytest.raises(RuntimeError, match="before the model was bound"):
        view(SimpleNamespace(spec_info=None), None, trtllm(dummy_pool)).__enter__()


def test_the_draft_uses_the_decode_child_of_a_hybrid(attach, mixed):
    backend = mixed
    worker = object.__new__(Worker)
    worker.topk = 1
    vars(worker)["_model_runner"] = SimpleNamespace(attn_backend=backend)
    assert worker._init_draft_attn_backend() is backend
    attach("off", "swa-state-swap")
    assert worker._init_draft_attn_backend() is backend.decode_backend
    assert unwrap_hybrid(backend.decode_backend, worker) is None


def test_graph_capture_runs_inside_the_swap(attach, dummy_pool, context, monkeypatch):
    """SGLang's constructor sizes the page tables before its own swap; with the fix both happen inside ours."""
    seen = []
    runner_class = frozen_kv_mtp_cuda_graph_runner.FrozenKVMTPCudaGraphRunner
    backend = trtllm(dummy_pool)

    class Stop(Exception): ...

    def init_cuda_graph_state(*sizes):
        seen.append((backend.token_to_kv_pool, backend._swa_kv_pool))
        raise Stop

    backend.init_cuda_graph_state = init_cuda_graph_state
    arguments = SimpleNamespace(
        enable_torch_compile=False,
        disable_cuda_graph_padding=False,
        speculative_num_steps=3,
        speculative_eagle_topk=1,
        enable_profile_cuda_graph=False,
        cuda_graph_bs=[1, 2],
        torch_compile_max_bs=1,
        disable_cuda_graph=False,
        enable_dp_attention=False,
        moe_dense_tp_size=None,
        enable_two_batch_overlap=False,
        moe_a2a_backend="none",
        elastic_ep_backend=None,
        enable_dp_lm_head=False,
        speculative_num_draft_tokens=4,
    )
    runner = SimpleNamespace(
        server_args=arguments, tp_size=1, dp_size=1, req_to_token_pool=SimpleNamespace(size=8), spec_algorithm=None
    )
    runner.device = "cpu"
    worker = SimpleNamespace(draft_model_runner=runner, draft_attn_backend=backend, kv_context=context)
    monkeypatch.setattr(frozen_kv_mtp_cuda_graph_runner, "get_batch_sizes_to_capture", lambda *_: ([1, 2], []))
    monkeypatch.setattr(frozen_kv_mtp_cuda_graph_runner, "resolve_num_tokens_per_req", lambda **_: 1, raising=False)
    for name in ("require_gathered_buffer", "require_mlp_tp_gather", "require_mlp_sync", "require_attn_tp_gather"):
        monkeypatch.setattr(frozen_kv_mtp_cuda_graph_runner, name, lambda *_: False)
    for _ in range(2):
        with published(arguments), pytest.raises(Stop):
            runner_class(worker)
        attach("off", "swa-state-swap") if len(seen) == 1 else None
    target = context.target_token_to_kv_pool
    assert seen == [(dummy_pool, None), (target, target)]
    assert (backend.token_to_kv_pool, backend._swa_kv_pool) == (dummy_pool, None)


def test_fix_sites_are_those_that_sglang_has():
    """A new place that swaps the pool by hand would need the fix too; this fails when SGLang grows one."""
    import inspect

    text = inspect.getsource(frozen_kv_mtp_utils) + inspect.getsource(worker_module)
    text += inspect.getsource(frozen_kv_mtp_cuda_graph_runner)
    assert text.count("draft_attn_backend.token_to_kv_pool = ") == 6
