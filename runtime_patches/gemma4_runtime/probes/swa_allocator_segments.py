"""Probe `swa-allocator`, what is given back from 0.5.23 on: by slots, by segments of a row, and on one side alone.

| entry point       | full slots                       | SWA peers (mapping)                                          |
|-------------------|----------------------------------|--------------------------------------------------------------|
| free, free_segment| as `free` of 0.5.13              | as there                                                     |
| free_full,        | as `free`                        | 0: the SWA side has gone before                              |
| free_full_segment |                                  |                                                              |
| free_swa,         | as `free_swa` of 0.5.13          | as there, and no entry of a released page may be left        |
| free_swa_segment  |                                  |                                                              |
| free_group_end    | no slot in two calls of the      | every page of its calls is among what the group holds        |
|                   | group; as to the right           |                                                              |

Within a group SGLang settles which SWA page a slot has when the call comes in, and gives both back at the group's end;
the ledger follows it. `swa_allocator_free.py` has the checks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gemma4_runtime.checks.slot_free import check_repeats
from gemma4_runtime.probes.swa_allocator_free import (
    check_call,
    check_group,
    check_leftovers,
    check_settled,
    not_in_the_group,
)
from gemma4_runtime.probes.swa_allocator_state import books_of, report_slots, uppers
from gemma4_runtime.release.allocators import in_free_group


def around_free(original: Callable[..., Any], allocator: Any, free_index: torch.Tensor, **named: Any) -> Any:
    """Run around `free`, [n] full slots."""
    return _give_back(partial(original, allocator, free_index, **named), allocator, free_index, "free")


def around_free_segment(original: Callable[..., Any], allocator: Any, free_index: torch.Tensor, **named: Any) -> Any:
    """Run around `free_segment(free_index, start_pos)`, [n] full slots that follow each other in a row."""
    return _give_back(partial(original, allocator, free_index, **named), allocator, free_index, "free_segment")


def around_free_full(original: Callable[..., Any], allocator: Any, free_index: torch.Tensor, **named: Any) -> Any:
    """Run around `free_full`, [n] full slots whose SWA pages have gone before."""
    return _give_back(partial(original, allocator, free_index, **named), allocator, free_index, "free_full")


def around_free_full_segment(
    original: Callable[..., Any], allocator: Any, free_index: torch.Tensor, **named: Any
) -> Any:
    """Run around `free_full_segment(free_index, start_pos)`, likewise."""
    return _give_back(partial(original, allocator, free_index, **named), allocator, free_index, "free_full_segment")


def around_free_swa(original: Callable[..., Any], allocator: Any, free_index: torch.Tensor, **named: Any) -> Any:
    """Run around `free_swa`, [n] full slots that keep their full page."""
    return _give_back(partial(original, allocator, free_index, **named), allocator, free_index, "free_swa")


def around_free_swa_segment(
    original: Callable[..., Any], allocator: Any, free_index: torch.Tensor, **named: Any
) -> Any:
    """Run around `free_swa_segment(free_index, start_pos)`, likewise."""
    return _give_back(partial(original, allocator, free_index, **named), allocator, free_index, "free_swa_segment")


def around_free_group_end(original: Callable[..., Any], allocator: Any) -> Any:
    """Run around `free_group_end()` of a pool pair's allocator."""
    books = books_of(allocator)
    pending = books.pending_of(allocator.free_group)
    books.pending, books.group = [], None
    named = [full for full, _ in pending if full is not None]
    if pending:
        # Slot 0 stands for full slots that stay in use.
        ended = [(torch.zeros_like(peers) if full is None else full, peers) for full, peers in pending]
        slots, peers = (torch.cat([one.to(torch.int64) for one in side]) for side in zip(*ended, strict=True))
        books.history.begin(allocator, "free_group_end", {"settled": True}, full=slots, swa=peers)
    if named:
        full = torch.cat(named)
        # Each call of the group has been checked; what is left is a slot that two of them named.
        violation = check_repeats(full, allocator.page_size, uppers(allocator)[0])
        if violation is not None:
            summary = f"free_group_end frees full slot {violation.first.value} twice: two calls of the group named it"
            report_slots(allocator, violation, full, torch.zeros_like(full), "free_group_end", lambda: summary)
    if pending:
        peers_named = torch.cat([peers for _, peers in pending])
        check_group(books, allocator, torch.cat(named) if named else None, peers_named)
    with books.call():
        result = original(allocator)
    if pending:
        books.history.end(allocator)
        swa = torch.cat([peers for _, peers in pending])
        check_settled(books, allocator, torch.cat(named) if named else None, swa, "free_group_end")

    def update() -> None:
        for full, peers in pending:
            if full is None:
                books.ledger.release_swa(peers)
            else:
                books.ledger.release(full, peers)

    books.commit(allocator, update)
    return result


def _give_back(call: Callable[[], Any], allocator: Any, full: torch.Tensor, entry: str) -> Any:
    books = books_of(allocator)
    if books.inside or full.numel() == 0:
        return call()
    keeps_full = entry.startswith("free_swa")
    peers = check_call(books, allocator, full, entry, keeps_full=keeps_full, settled=True)
    with books.call():
        result = call()
    books.history.end(allocator)
    # What gives back full slots alone leaves the map as it is, whatever that has for them.
    settled = torch.zeros_like(peers) if entry.startswith("free_full") else peers
    if not in_free_group(allocator):
        check_settled(books, allocator, None if keeps_full else full, settled, entry)
    if keeps_full and allocator.page_size > 1 and not books.doubted:
        check_leftovers(books, allocator, full, peers)
    ledger = books.ledger
    if in_free_group(allocator):
        # A row's entries may be overwritten before the group ends.
        books.pending = [*books.pending_of(allocator.free_group), (None if keeps_full else full.clone(), settled)]
        short = any(not_in_the_group(books, allocator, None if keeps_full else full, settled))
        books.short = short or (books.short and books.group is allocator.free_group)
        books.group = allocator.free_group
        books.commit(allocator)
    elif keeps_full:
        books.commit(allocator, lambda: ledger.release_swa(peers))
    else:
        books.commit(allocator, lambda: ledger.release(full, settled))
    return result
