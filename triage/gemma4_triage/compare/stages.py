"""The order in which data flows to a kernel, and where in it each tensor of a dump belongs."""

from __future__ import annotations

PAGE_TABLES, SEQUENCE_LENGTHS, SLOTS, OTHER_TENSORS = "page tables", "sequence lengths", "slots", "other tensors"
TENSOR_STAGES = (PAGE_TABLES, SEQUENCE_LENGTHS, SLOTS, OTHER_TENSORS)

# Parts of the names that the probes give. A table's row ends (`_indptr`) are part of it.
_PARTS = (
    (PAGE_TABLES, ("page_table", "kv_indices", "kv_indptr")),
    (SEQUENCE_LENGTHS, ("seqlens", "seq_lens")),
    (SLOTS, ("slots", "cache_loc")),
)


def tensor_stage(name: str) -> str:
    """Return one of TENSOR_STAGES."""
    return next((stage for stage, parts in _PARTS if any(part in name for part in parts)), OTHER_TENSORS)


def tensor_order(name: str) -> tuple[int, str]:
    """Sorts tensors by stage, then by name: what was translated happens to come after what it was made of."""
    return TENSOR_STAGES.index(tensor_stage(name)), name
