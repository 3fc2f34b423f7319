"""What the calls that the ledger remembers tell of the pages that an audit found wrong.

An audit sees where a page is; which call brought it there, the free lists about that call and the frees before it say.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gemma4_runtime.checks.page_census import Fault
from gemma4_runtime.checks.page_ledger import LIFE_COLUMNS, LastEvent, PageLedger
from gemma4_runtime.leak.audit import Audit

_NOT_TOLD = "0:0:0"
"""Of a pool that lost pages of which no call says that it took and did not give them."""


def told_by_calls(audit: Audit) -> dict[str, str]:
    """Return what a dump says of it, by pool: scalars, those of which nothing is known left out.

    `full_lost_in`, `full_dropped`, `full_given_in_use` and `full_freed_once`, and those of `swa`: see below.
    """
    return _lost_in(audit) | _dropped(audit) | _given_in_use(audit) | _freed_once(audit)


def _lost_in(audit: Audit) -> dict[str, str]:
    """Return how a pool lost the only free page that is nowhere, where a page that is held is free as well.

    hand-out: a call took it off the free list, and gave another. listed twice: no such call took it, and the list named
    the other one twice as that was given. free list: the list still had the lost one then, and no longer the other.
    """
    found = {}
    for number, (name, history) in enumerate(audit.ledger.pools.items()):
        of_pool = [finding for finding in audit.findings if finding.pool == name]
        nowhere = [finding.pages for finding in of_pool if finding.fault is Fault.NOWHERE]
        lost = [page for page in np.concatenate(nowhere).tolist() if _was_free(history, page)] if nowhere else []
        held = [page for one in of_pool if one.fault is Fault.FREE_AND_HELD for page in one.pages.tolist()]
        if len(lost) != 1 or len(held) != 1:
            continue
        for call in (call for call in reversed(audit.ledger.hand_outs) if call.pool == number):
            given = _on_host((call.slots,)) // audit.ledger.page_size
            before, after = _on_host(call.before), _on_host(call.after)
            if lost[0] in before and lost[0] not in (*after, *given):
                found[f"{name}_lost_in"] = "hand-out"
                break
            if held[0] in given:
                if (before == held[0]).sum() > 1:
                    found[f"{name}_lost_in"] = "listed twice"
                elif lost[0] in after and held[0] not in after:
                    found[f"{name}_lost_in"] = "free list"
                break
    return found


def _given_in_use(audit: Audit) -> dict[str, str]:
    """Return, by pool, whether a page of two holders was listed before a call gave it: free list, or else hand-out.

    That is told of what one call gave, of pages whose lives before have no end that the ledger saw.
    """
    found = {}
    for number, (name, history) in enumerate(audit.ledger.pools.items()):
        twice = [one.pages for one in audit.findings if one.pool == name and one.fault is Fault.HELD_TWICE]
        pages = [page for page in (np.concatenate(twice).tolist() if twice else ()) if _went_on(history, page)]
        for call in (call for call in reversed(audit.ledger.hand_outs) if call.pool == number and pages):
            slots, size = _on_host((call.slots,)), audit.ledger.page_size
            given = np.intersect1d(slots[slots % size == 0] // size, pages)
            if given.size:
                before, after = _on_host(call.before), _on_host(call.after)
                if not np.isin(given, before).any():
                    found[f"{name}_given_in_use"] = "hand-out"
                elif np.isin(given, before).all() and not np.isin(given, after).any():
                    found[f"{name}_given_in_use"] = "free list"
                break
    return found


def _freed_once(audit: Audit) -> dict[str, str]:
    """Return, by pool, how many of the pages that its free list has twice were asked back once, of how many.

    `3:3`. Asked back since the audit before, in the step in which they were freed last: an earlier free that was not
    followed by a hand-out is an anomaly of its own, as is a second one behind it.
    """
    found, ledger = {}, audit.ledger
    for number, (name, history) in enumerate(ledger.pools.items()):
        twice = [one.pages for one in audit.findings if one.pool == name and one.fault is Fault.FREE_TWICE]
        pages = [page for page in (np.concatenate(twice).tolist() if twice else ()) if 0 < page <= history.pages]
        again = [one.pages for one in audit.findings if one.pool == name and one.fault is Fault.FREED_AGAIN]
        if pages and not again:
            asked = ledger.frees_of(np.array(pages), history.free_step[pages], number)
            found[f"{name}_freed_once"] = f"{int((asked == 1).sum())}:{len(pages)}"
    return found


def _went_on(history: PageLedger, page: int) -> bool:
    """Return whether a page that is in use was in use when it was handed out: nobody gave it back between."""
    ended = history.lives_of(page)[:, LIFE_COLUMNS.index("free_step")]
    return ended.size > 1 and bool((ended[-2:] < 0).all())


def _dropped(audit: Audit) -> dict[str, str]:
    """Return, by pool, how many pages the latest call took that lost one of them without giving it, of how many."""
    found = {}
    for number, (name, history) in enumerate(audit.ledger.pools.items()):
        of_pool = [one for one in audit.findings if one.pool == name]
        nowhere = [one.pages for one in of_pool if one.fault is Fault.NOWHERE]
        if not nowhere:
            continue
        found[f"{name}_dropped"] = _NOT_TOLD
        if any(one.fault in (Fault.FREE_AND_HELD, Fault.HELD_TWICE) for one in of_pool):
            # Others may have been given in their places.
            continue
        every = np.concatenate(nowhere)
        lost = [page for page in every.tolist() if _was_free(history, page)]
        for call in (call for call in reversed(audit.ledger.hand_outs) if call.pool == number and lost):
            slots, size = _on_host((call.slots,)), audit.ledger.page_size
            given, opened = slots // size, slots[slots % size == 0] // size
            taken = np.setdiff1d(_on_host(call.before), _on_host(call.after))
            if np.unique(opened).size != opened.size or np.setdiff1d(opened, taken).size:
                # It gave something else in the place of what it took.
                break
            dropped = np.setdiff1d(taken, given)
            if np.isin(lost, dropped).any():
                found[f"{name}_dropped"] = f"{dropped.size}:{taken.size}:{int(np.isin(every, dropped).all())}"
                break
    return found


def _was_free(history: PageLedger, page: int) -> bool:
    return 0 < page <= history.pages and history.last_event[page] in (LastEvent.CLEARED, LastEvent.FREED)


def _on_host(parts: Sequence[torch.Tensor]) -> np.ndarray:
    return np.concatenate([part.to("cpu", torch.int64).reshape(-1).numpy() for part in parts])
