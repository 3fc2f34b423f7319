"""Fix: the draft backend's SWA state follows its KV pool, on every leaf, wherever SGLang swaps the pool.

FROZEN_KV_MTP lets the assistant read the target's KV by setting `token_to_kv_pool` on the draft's attention backend.
That leaves two things behind:

  * `_swa_kv_pool`, from which trtllm_mha decides whether sliding layers need translated page ids. Stale, it sends
    full-pool page ids into the sliding-window buffer: the seed crash. In 0.5.23 the mapping by which graphs translate
    is kept beside it.
  * the children of a HybridAttnBackend, which hold pools of their own. Unswapped, a target layer id indexes the
    assistant's dummy pool: IndexError (SGLang up to 0.5.23).

| site                                      | SGLang swaps        | this fix swaps as well          |
|-------------------------------------------|---------------------|---------------------------------|
| frozen_kv_target_view (metadata)          | the wrapper's pool  | every leaf's pool and SWA state |
| target_kv_pool_view (forwards)            | the wrapper's pool  | every leaf's pool and SWA state |
| FrozenKVMTPCudaGraphRunner.__init__       | the wrapper's pool, | both, and already while the     |
|   (graph buffers, then capture)           | during capture only | graph's page tables are sized   |
| _init_draft_attn_backend                  | nothing             | hybrid -> its decode child      |

`use_sliding_window_kv_pool` stays as it is: it governs KV writes, and the assistant writes none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_CHILDREN = ("prefill_backend", "decode_backend", "full_attn_backend", "primary")
_CHILD_LISTS = ("attn_backends", "children")


def iter_leaves(backend: Any) -> Iterator[Any]:
    """Yield every backend without children below `backend`, each once; `backend` itself if it has none."""
    from gemma4_runtime.release import AttentionBackend

    seen: set[int] = set()
    pending = [backend]
    while pending:
        node = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        attributes = vars(node)
        children = [attributes.get(name) for name in _CHILDREN]
        for name in _CHILD_LISTS:
            children.extend(attributes.get(name) or ())
        # FlashInfer's backend keeps kernel names (strings) under the same attribute names as Hybrid keeps backends.
        children = [child for child in children if isinstance(child, AttentionBackend)]
        # Reversed, so that leaves come out in the order in which the parent names them.
        pending.extend(reversed(children))
        if not children:
            yield node


@contextmanager
def lock_step(backend: Any, pool: Any) -> Iterator[None]:
    """Point every leaf of `backend` at `pool`, SWA state included, and put back exactly what was there."""
    from gemma4_runtime.release import SWAKVPool

    swa_pool = pool if isinstance(pool, SWAKVPool) else None
    saved: list[tuple[Any, str, Any]] = []
    try:
        for leaf in iter_leaves(backend):
            state = {
                "token_to_kv_pool": pool,
                "_swa_kv_pool": swa_pool,
                "_swa_full_to_swa_mapping": _mapping_of(swa_pool, leaf),
            }
            for name, value in state.items():
                if hasattr(leaf, name):
                    saved.append((leaf, name, getattr(leaf, name)))
                    setattr(leaf, name, value)
        yield
    finally:
        for leaf, name, value in reversed(saved):
            setattr(leaf, name, value)


def _mapping_of(swa_pool: Any, leaf: Any) -> Any:
    """Return what a leaf's graphs translate slots by; None where the release translates a batch's slots as a whole."""
    translator = getattr(leaf, "kv_index_translator", None)
    if swa_pool is None or getattr(translator, "is_translating", False):
        return None
    return swa_pool.full_to_swa_index_mapping


@contextmanager
def around_view(
    original: Callable[..., Any], forward_batch: Any, kv_context: Any, draft_attn_backend: Any
) -> Iterator[None]:
    """Run around both of SGLang's context managers: theirs first, for its checks and other swaps, then the leaves."""
    with (
        original(forward_batch, kv_context, draft_attn_backend),
        lock_step(draft_attn_backend, kv_context.target_token_to_kv_pool),
    ):
        yield


def around_graph_runner_init(original: Callable[..., Any], runner: Any, frozen_kv_mtp_worker: Any) -> None:
    """Run around the draft graph runner's constructor, which sizes the graph's page tables and then captures."""
    worker = frozen_kv_mtp_worker
    with lock_step(worker.draft_attn_backend, worker.kv_context.target_token_to_kv_pool):
        original(runner, worker)


def unwrap_hybrid(backend: Any, worker: Any, **_unknown: Any) -> Any:
    """Run after the draft backend is chosen: the frozen draft only ever decodes, so a hybrid is its decode child."""
    from gemma4_runtime.release import HybridAttnBackend

    return backend.decode_backend if isinstance(backend, HybridAttnBackend) else None
