"""Reads what attention backends keep of the pools that they list slots of."""

from __future__ import annotations

from typing import Any

from gemma4_runtime.releases import at_least, read_as

_HOLDS_THE_POOL = at_least(read_as(), "0.5.23")


def lists_swa_slots(updater: Any) -> bool:
    """Return whether the lists that FlashInfer's sliding layers read hold slots of the SWA pool.

    Args:
        updater: Of a backend's lists for decodes, or for prefills.
    """
    if _HOLDS_THE_POOL:
        return updater._swa_kv_pool is not None
    from gemma4_runtime.release import SWATokenToKVPoolAllocator

    return isinstance(updater.token_to_kv_pool_allocator, SWATokenToKVPoolAllocator)
