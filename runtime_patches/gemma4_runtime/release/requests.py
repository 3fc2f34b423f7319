"""Reads what a request holds in the KV pools; 0.5.23 keeps it in a record of its own, `Req.kv`."""

from __future__ import annotations

from typing import Any

from gemma4_runtime.releases import at_least, installed_or_base

_IN_A_RECORD = at_least(installed_or_base(), "0.5.23")


def held(request: Any) -> Any:
    """Returns what has a request's `req_pool_idx`, `kv_committed_len`, `kv_allocated_len` and `cache_protected_len`.

    Args:
        request: A `Req`.
    """
    return request.kv if _IN_A_RECORD else request
