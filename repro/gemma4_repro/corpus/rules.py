"""Which probe writes a rule. A dump names its rule; people ask which probe fired."""

from __future__ import annotations

from collections.abc import Mapping

PROBE_OF_RULE: Mapping[str, str] = {
    "page-table-bounds": "page-table",
    "swa-alloc-range": "swa-allocator",
    "swa-alloc-overlap": "swa-allocator",
    "swa-free-range": "swa-allocator",
    "swa-double-free": "swa-allocator",
    "swa-stale-mapping": "swa-allocator",
    "swa-mapping-alias": "swa-allocator",
    "swa-lost-pages": "swa-allocator",
    "geometry": "geometry",
    "leak-audit": "leak-ledger",
    "batch-shapes": "batch-shapes",
    "request-rows": "request-rows",
    "process-end": "process-end",
    "accept-length": "accept-length",
}

OF_ANY_FAULT = (("process-end", "exception"), ("accept-length", "accept_length_fell"))
"""Rule and verdict of what any fault may lead to: an engine that dies of it, and drafts that are accepted less."""
NOT_OF_THE_CORPUS = frozenset({"accept-length", "process-end", "request-rows"})
"""Probes that no fault of the corpus has to lead to: they see what others did not, and have tests of their own."""


def probe_of(rule: str) -> str:
    """Return the probe behind `rule`; the rule itself where that is not known."""
    return PROBE_OF_RULE.get(rule, rule)
