"""Whose a page is by the leak ledger, for what `request-rows` finds: who is overwritten by a wrong write, say."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemma4_runtime import current
from gemma4_runtime.checks.page_ledger import LastEvent, Site
from gemma4_runtime.leak.ledger import ledger_of

_IN_USE = (LastEvent.HANDED_OUT, LastEvent.OWNED, LastEvent.GIVEN, LastEvent.FREE_ASKED)


def owner_of(scheduler: Any, page: int, pool: str = "full") -> dict[str, Any]:
    """Return, for a dump, whose a page is that is in use: its request slot and how often that had been given out then.

    Nothing where the ledger is off, the pool has no such page, or nobody has it. Only called where something is wrong.

    Args:
        scheduler: Whose pools they are.
        page: The page.
        pool: Of which pool it is.
    """
    if not current.switched_on("leak-ledger"):
        return {}
    ledger = ledger_of(scheduler.token_to_kv_pool_allocator)
    ledger.log.drain()
    pages = ledger.pools.get(pool)
    if pages is None or not 0 < page <= pages.pages or not np.isin(pages.last_event[page], _IN_USE):
        return {}
    owner = int(pages.owner[page])
    if owner <= 0:
        return {}
    cached = {"page_is_cached": True} if pages.last_event[page] == LastEvent.GIVEN else {}
    return {"page_owner": owner, "page_owner_generation": int(pages.generation[page]), **cached}


def freed_before(scheduler: Any, page: int, by: tuple[int, int] | None) -> dict[str, Any]:
    """Return, for a dump, what the ledger knows of a full page that is on the free list; nothing where it is off.

    `page_event`: what became of it last. `page_was_own`: whether the request was its last owner. Who gave it back last,
    and when, only where that is what became of it last.

    Args:
        scheduler: Whose pools they are.
        page: The page.
        by: Request slot and generation of the request; None where it is not known.
    """
    if not current.switched_on("leak-ledger"):
        return {}
    ledger = ledger_of(scheduler.token_to_kv_pool_allocator)
    ledger.log.drain()
    pages = ledger.pools["full"]
    last = LastEvent(pages.last_event[page])
    own = None if by is None else (int(pages.owner[page]), int(pages.generation[page])) == by
    known = {"page_event": last.name.lower(), "page_was_own": own}
    if last not in (LastEvent.FREED, LastEvent.FREE_ASKED):
        return known
    return known | given_up(scheduler, page, nodes_are_gone=False)


def given_up(scheduler: Any, page: int, *, nodes_are_gone: bool) -> dict[str, Any]:
    """Return, for a dump, who gave back a full page last that a request's prefix has, and whether its nodes are gone.

    Nothing where the ledger is off, or saw nobody do so.

    Args:
        scheduler: Whose pools they are.
        page: The page.
        nodes_are_gone: Whether the prefix cache has the request's nodes no more.
    """
    if not current.switched_on("leak-ledger"):
        return {}
    lives = ledger_of(scheduler.token_to_kv_pool_allocator).pools["full"].lives_of(page)
    ended = [(int(life[4]), int(life[5])) for life in lives if life[5] >= 0]
    told = {"page_free_site": Site(ended[-1][0]).name.lower(), "page_free_step": ended[-1][1]} if ended else {}
    return told and told | {"nodes_are_gone": nodes_are_gone}


def served_by(scheduler: Any, page: int) -> dict[str, Any]:
    """Return, for a dump, the SWA page that a full page was handed out with; nothing where the ledger does not know."""
    if not current.switched_on("leak-ledger"):
        return {}
    ledger = ledger_of(scheduler.token_to_kv_pool_allocator)
    ledger.log.drain()
    pages = ledger.pools["full"]
    known = 0 < page <= pages.pages and pages.peer[page] > 0
    return {"handed_out_with": int(pages.peer[page])} if known else {}
