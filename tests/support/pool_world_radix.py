"""What `pool_world` asks of SGLang before 0.5.23, which has a cache for each kind of pools and one for none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.managers import schedule_batch
from sglang.srt.mem_cache import common
from sglang.srt.mem_cache.chunk_cache import ChunkCache, SWAChunkCache
from sglang.srt.mem_cache.common import alloc_for_decode, alloc_for_extend
from sglang.srt.mem_cache.radix_cache import RadixCache
from sglang.srt.mem_cache.swa_radix_cache import SWARadixCache

__all__ = ["admit", "after_decode", "alloc_for_decode", "alloc_for_extend", "left_the_window", "make_cache", "miscount"]
__all__ += ["prefilled", "publish", "release", "value_of"]


def publish(monkeypatch: pytest.MonkeyPatch, page_size: int) -> None:
    """Publish the few fields that the functions under test read of SGLang's global arguments."""
    arguments = SimpleNamespace(
        attention_backend="torch_native", page_size=page_size, speculative_algorithm=None, strip_thinking_cache=False
    )
    for module in (common, schedule_batch):
        monkeypatch.setattr(module, "get_global_server_args", lambda: arguments)


def make_cache(parameters: Any, hybrid: bool, cached: bool) -> Any:
    """Return the prefix cache that SGLang takes for such pools."""
    kinds = {(True, True): SWARadixCache, (False, True): RadixCache, (True, False): SWAChunkCache}
    return kinds.get((hybrid, cached), ChunkCache)(parameters)


def admit(request: Any, tree: Any, tokens: int) -> int:
    """Match and lock a request's prefix as the scheduler does, and return how many tokens that has."""
    request.init_next_round_input(tree)
    if request.last_node is not None:
        request.swa_uuid_for_lock = getattr(tree.inc_lock_ref(request.last_node), "swa_uuid_for_lock", None)
    request.cache_protected_len = len(request.prefix_indices) if tree.is_tree_cache() else 0
    request.set_extend_input_len(tokens - len(request.prefix_indices))
    request.fill_len = tokens
    return len(request.prefix_indices)


def prefilled(request: Any, tree: Any, tokens: int) -> None:
    """Do what the scheduler does with a request whose prompt has been prefilled."""
    request.kv_committed_len = request.kv_allocated_len = tokens
    tree.cache_unfinished_req(request)


def after_decode(request: Any) -> None:
    """Count the token that a step gave a request."""
    request.kv_committed_len += 1
    request.kv_allocated_len += 1


def release(request: Any, tree: Any) -> None:
    """Do what the scheduler does with a request that has ended."""
    common.release_kv_cache(request, tree)


def left_the_window(request: Any, tokens: int) -> None:
    """Let a request say that so many of its first tokens have given up their slots of the sliding window."""
    request.swa_evicted_seqlen = tokens


def value_of(tree: Any, node: Any) -> torch.Tensor:
    """Return the slots of a node as they lie in the cache, which writing to them changes."""
    return node.value


def miscount(tree: Any, node: Any, tokens: int) -> None:
    """Let the cache count tokens of the full pool that it does not have."""
    tree.full_evictable_size_ += tokens
