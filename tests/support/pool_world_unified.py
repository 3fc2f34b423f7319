"""What `pool_world` asks of SGLang 0.5.23, which has one cache for all pools; a disabled one holds nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sglang.srt.managers import schedule_batch
from sglang.srt.mem_cache import allocation, common
from sglang.srt.mem_cache.allocation import alloc_for_decode, alloc_for_extend
from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

__all__ = ["admit", "after_decode", "alloc_for_decode", "alloc_for_extend", "left_the_window", "make_cache", "miscount"]
__all__ += ["prefilled", "publish", "release", "value_of"]


def publish(monkeypatch: pytest.MonkeyPatch, page_size: int) -> None:
    """Publish the few fields that the functions under test read of a server's settled arguments."""
    monkeypatch.setattr(allocation, "attention_backends", lambda: ("torch_native", "torch_native"))
    monkeypatch.setattr(common, "get_spec", lambda: SimpleNamespace(speculative_algorithm=None))
    for module in (common, schedule_batch):
        monkeypatch.setattr(module, "get_serving", lambda: SimpleNamespace(strip_thinking_cache=False))


def make_cache(parameters: Any, hybrid: bool, cached: bool) -> Any:
    """Return the prefix cache that SGLang takes for such pools."""
    parameters.disable = not cached
    parameters.tree_components = (ComponentType.FULL, *([ComponentType.SWA] if hybrid else []))
    return UnifiedRadixCache(parameters)


def admit(request: Any, tree: Any, tokens: int) -> int:
    """Match and lock a request's prefix as the scheduler does, and return how many tokens that has."""
    request.init_next_round_input(tree)
    request.lock = tree.lock(request.last_node)
    request.extend_end = tokens
    return request.prefix_len


def prefilled(request: Any, tree: Any, tokens: int) -> None:
    """Do what the scheduler does with a request whose prompt has been prefilled."""
    checkpoint_kv_cache(request, tree)


def after_decode(request: Any) -> None:
    """Leave the counts of a request alone: `alloc_for_decode` has them."""


def release(request: Any, tree: Any) -> None:
    """Do what the scheduler does with a request that has ended."""
    release_kv_cache(request, tree, checkpoint=True)


def left_the_window(request: Any, tokens: int) -> None:
    """Let a request say that so many of its first tokens have given up their slots of the sliding window."""
    request.kv.set_evicted_seqlen(ComponentType.SWA, tokens)


def value_of(tree: Any, node: Any) -> torch.Tensor:
    """Return the slots of a node as they lie in the cache, which writing to them changes."""
    return tree.tree_core.get_component_device_value(node, ComponentType.FULL)


def miscount(tree: Any, node: Any, tokens: int) -> None:
    """Let the cache count tokens of the full pool that it does not have."""
    tree.tree_core.adjust_component_size(node, ComponentType.FULL, tokens)
