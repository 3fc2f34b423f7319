"""Probe: every slot that the SWA allocator hands out, or is asked to continue from, lies inside its pool.

Backend-independent: it traps at the hand-out, before any kernel of any backend writes or reads there.

| entry point             | full slots             | SWA peers (mapping)          | last_loc                          |
|-------------------------|------------------------|------------------------------|-----------------------------------|
| alloc                   | [1, size + page)       | [1, swa size + page)         | -                                 |
| alloc_extend            | [page, size + page)    | [page, swa size + page)      | -1 only where the prefix is empty |
| alloc_extend_swa_tail   | [page, size + page)    | 0 before the tail, else same | -1 only where the prefix is empty |
| alloc_decode            | [page, size + page)    | [page, swa size + page)      | -1 only for a first token         |
| set_full_to_swa_mapping | [page, size + page)    | [page, swa size + page)      | -                                 |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gemma4_dumps.schema import Provenance
from gemma4_runtime.checks.slot_range import check_slot_range
from gemma4_runtime.errors import VerificationFailed
from gemma4_runtime.evidence import payload
from gemma4_runtime.guard import Scene
from gemma4_runtime.session import Session

RULE = "swa-alloc-range"


def around_alloc(original: Callable[..., Any], allocator: Any, need_size: int) -> Any:
    """Around `alloc(need_size)` -> [need_size] or None."""
    slots = original(allocator, need_size)
    _check_handed_out(allocator, slots, "alloc")
    return slots


def around_alloc_extend(original: Callable[..., Any], allocator: Any, prefix_lens: Any, *args: Any, **kw: Any) -> Any:
    """Around `alloc_extend(prefix_lens, prefix_lens_cpu, seq_lens, seq_lens_cpu, last_loc, extend_num_tokens)`."""
    last_loc = kw["last_loc"] if "last_loc" in kw else args[3]
    _check_last_loc(allocator, last_loc, prefix_lens == 0, "alloc_extend")
    slots = original(allocator, prefix_lens, *args, **kw)
    _check_handed_out(allocator, slots, "alloc_extend")
    return slots


def around_alloc_extend_tail(
    original: Callable[..., Any], allocator: Any, prefix_lens: Any, *args: Any, **kw: Any
) -> Any:
    """Around `alloc_extend_swa_tail(..., extend_num_tokens, swa_tail_len)`: only the tail has SWA peers."""
    last_loc = kw["last_loc"] if "last_loc" in kw else args[3]
    tail = kw["swa_tail_len"] if "swa_tail_len" in kw else args[5]
    _check_last_loc(allocator, last_loc, prefix_lens == 0, "alloc_extend_swa_tail")
    slots = original(allocator, prefix_lens, *args, **kw)
    _check_handed_out(allocator, slots, "alloc_extend_swa_tail", swa_from=None if slots is None else len(slots) - tail)
    return slots


def around_alloc_decode(
    original: Callable[..., Any], allocator: Any, seq_lens: Any, seq_lens_cpu: Any, last_loc: Any
) -> Any:
    """Around `alloc_decode(seq_lens, seq_lens_cpu, last_loc)` -> [requests] or None; seq_lens counts the new token."""
    _check_last_loc(allocator, last_loc, seq_lens <= 1, "alloc_decode")
    slots = original(allocator, seq_lens, seq_lens_cpu, last_loc)
    _check_handed_out(allocator, slots, "alloc_decode")
    return slots


def after_set_mapping(result: Any, allocator: Any, full_indices: Any, swa_indices: Any) -> None:
    """After `set_full_to_swa_mapping`, which rebuilds entries that another path allocated."""
    _check_handed_out(allocator, full_indices, "set_full_to_swa_mapping")


def self_test() -> None:
    """Fire on a slot past the pool and on a stray -1, stay silent on legal ones.

    Raises:
        VerificationFailed: the check no longer tells them apart.
    """
    clean = check_slot_range(torch.tensor([-1, 16, 31]), 16, 32, torch.tensor([True, False, False]))
    beyond, stray = check_slot_range(torch.tensor([32]), 16, 32), check_slot_range(torch.tensor([-1]), 16, 32)
    if clean is not None or beyond is None or stray is None:
        raise VerificationFailed(f"{RULE}: self test: clean {clean}, beyond {beyond}, stray {stray}")


def _check_last_loc(allocator: Any, last_loc: torch.Tensor, minus_one_legal: torch.Tensor, entry: str) -> None:
    upper = allocator.size_full + allocator.page_size
    violation = check_slot_range(last_loc, allocator.page_size, upper, minus_one_legal.to(last_loc.device))
    if violation is not None:
        _report(allocator, violation, "last_loc", last_loc, entry, "full")


def _check_handed_out(allocator: Any, slots: torch.Tensor | None, entry: str, swa_from: int | None = None) -> None:
    if slots is None or slots.numel() == 0:
        return
    lower, page = allocator.page_size, allocator.page_size
    violation = check_slot_range(slots, lower, allocator.size_full + page)
    if violation is not None:
        _report(allocator, violation, "full_slots", slots, entry, "full")
        return
    peers = allocator.full_to_swa_index_mapping[slots[swa_from or 0 :]]
    violation = check_slot_range(peers, lower, allocator.size_swa + page)
    if violation is not None:
        _report(allocator, violation, "swa_slots", peers, entry, "swa", {"full_slots": payload(slots)})


def _report(
    allocator: Any, violation: Any, name: str, slots: torch.Tensor, entry: str, space: str, more: Any = None
) -> None:
    bad = violation.first
    size = allocator.size_swa if space == "swa" else allocator.size_full
    Session.guard().report(
        violation,
        Scene(
            rule=RULE,
            site=f"SWATokenToKVPoolAllocator.{entry}",
            summary=(
                f"{entry} gave {space} slot {bad.value}, legal are {bad.lower} to {bad.upper - 1} "
                f"(pool of {size} tokens, page size {allocator.page_size})"
                if name != "last_loc"
                else f"{entry} was asked to continue from slot {bad.value}, legal are {bad.lower} to {bad.upper - 1}, "
                "and -1 for a request without earlier tokens"
            ),
            table=name,
            pool_kind=space,
            provenance=Provenance(
                table_space=space,  # pyright: ignore[reportArgumentType]
                buffer_space=space,  # pyright: ignore[reportArgumentType]
                table_origin=f"{type(allocator).__name__}.{entry}",
                buffer_origin=f"{type(allocator.get_kvcache()).__name__}, {space} pool",
                explanation=f"slot {bad.value} is outside the {space} pool that {entry} allocates from",
            ),
            facts={
                "page_size": allocator.page_size,
                "extents": {
                    "slots_full_pool": allocator.size_full + allocator.page_size,
                    "slots_swa_pool": allocator.size_swa + allocator.page_size,
                },
                "scalars": {
                    "full_available": int(allocator.full_available_size()),
                    "swa_available": int(allocator.swa_available_size()),
                },
                "tensors": {name: payload(slots), **(more or {})},
            },
        ),
    )
