"""The words for what can be wrong in a server's KV memory: which structure, and in which way one entry of it is wrong.

A mutation is drawn in these words, and a finding says what it found in the same ones.
`repro/gemma4_repro/mutations/grid.py` says which pairs exist, and why the others do not.
"""

from __future__ import annotations

from enum import StrEnum


class Structure(StrEnum):
    """A structure on which memory safety rests. An entry of it is what one mutation changes."""

    REQUEST_ROW = "req_to_token row"
    """Which slots of the full pool a request's tokens have; an entry is the slots of one page."""
    FULL_TABLE = "full page table"
    """What full-attention layers follow in one forward; an entry is a page id."""
    SWA_TABLE = "swa page table"
    """What sliding layers follow in one forward; an entry is a page id of the sliding-window pool."""
    SWA_MAPPING = "full-to-swa mapping"
    """Which slot of the sliding-window pool stands for a slot of the full pool; an entry is those of one page."""
    FULL_FREE_LIST = "full free list"
    """The pages that the full pool's allocator may hand out."""
    SWA_FREE_LIST = "swa free list"
    """The pages that the sliding-window pool's allocator may hand out."""
    ALLOCATION = "allocation result"
    """The slots that a call of the allocator hands out; an entry is those of one page."""
    FREE_CALL = "free call"
    """The slots that a call gives back; an entry is one page."""
    WRITE_LOCATIONS = "write locations"
    """Where a forward stores its tokens' keys and values (out_cache_loc); an entry is one slot."""
    KERNEL_LENGTHS = "kernel lengths"
    """How many tokens of each row a kernel reads (cache_seqlens)."""
    BATCH_LENGTHS = "batch lengths"
    """How long the scheduler believes each request to be (seq_lens)."""
    POSITIONS = "positions"
    """At which place of its sequence each token of a forward stands, a draft's too; it chooses the rotation."""
    ROW_INDICES = "row indices"
    """Which row of req_to_token belongs to each request of a batch (req_pool_indices)."""
    TREE_NODE = "radix tree node"
    """The slots that a node of the prefix cache holds; an entry is those of one page."""
    TREE_LOCK = "radix tree lock"
    """How many requests hold a node of the prefix cache."""
    REQUEST_COUNTERS = "request counters"
    """What a request says of itself: tokens committed, allocated, protected by the cache, evicted from the window."""
    DRAFT_BINDING = "draft binding"
    """Which of the target's layers a draft layer reads, how wide its window is, and by what it scales."""
    WINDOW_EVICTION = "window eviction"
    """Which pages of a running request have left its sliding window and are given back; an entry is one page."""
    FREE_GROUP = "free group"
    """What the calls of a group have given back, until the group ends; an entry is one page."""
    POOL_SIZE = "pool size"
    """How many pages an allocator believes its pool to have."""
    KV_SCALE = "kv scale"
    """By what a layer multiplies the keys or the values that it reads."""


class Defect(StrEnum):
    """In which way an entry is wrong."""

    OFF_BY_ONE = "off by one"
    """One unit of the structure too far or too short: a page, a slot, a token, a layer."""
    STALE = "stale"
    """A value that was right before: of an earlier step, or of a page that has been given back."""
    FOREIGN = "foreign"
    """What belongs to another running request, or to another layer."""
    OTHER_SPACE = "other space"
    """An id of the other pool, where this pool's belongs."""
    ZERO = "zero"
    NEGATIVE = "negative"
    PAST_END = "past the end"
    """The first index that the structure's target does not have, or one beyond it."""
    DUPLICATE = "duplicate"
    """What another entry of the same owner holds already; of a free: given back twice."""
    LOST = "lost"
    """An entry that is missing; of a free: never given back."""
    SWAPPED = "swapped"
    """Two entries exchanged."""
    EARLY = "early"
    """Given back, or released, while it is still in use."""
