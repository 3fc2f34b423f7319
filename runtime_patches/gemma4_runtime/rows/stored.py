"""What `request-rows` asks of a forward: it stores keys and values in every slot that it is to write.

Before a forward of the target the slots of its new tokens get a number in each layer that no row of keys or values
consists of; where it still stands as the logits are there, nothing was stored. Nobody reads those slots in between:
a forward stores first. A layer is looked at once a forward was seen to store there: some have buffers that nobody uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from gemma4_runtime.checks.request_rows import WrongEntry
from gemma4_runtime.release.requests import held
from gemma4_runtime.rows.finite import Part, parts_of, translated
from gemma4_runtime.rows.report import NOT_STORED, report_wrong
from gemma4_runtime.rows.seen import seen_of

_MARK = 2.0**-6
"""Small, so that whoever reads it by mistake goes on with numbers, and exact in every format of a cache."""
_KEYS = "keys and values"
_LEARNT = 256
"""Slots of a forward by which a buffer's use is learnt."""


class Marked(NamedTuple):
    """What a forward is to write.

    Attributes:
        forward: Its batch.
        slots: Of the full pool.
        own: By pool, the slots of its buffers, as they were then: whoever ends meanwhile gives back its own.
        rows: Of each slot, which request of the batch has it.
        tokens: And as which of its tokens.
    """

    forward: Any
    slots: torch.Tensor
    own: dict[str, torch.Tensor]
    rows: list[int]
    tokens: list[int]


def mark_new_slots(scheduler: Any, requests: Sequence[Any], made: Any, spans: Sequence[tuple[int, int]] | None) -> None:
    """Mark the slots that a forward of the target is about to write, where it is known whose they are.

    Args:
        scheduler: Whose pools they are.
        requests: Those of the batch.
        made: The forward's batch.
        spans: Of each request, from where to where the forward's tokens stand.
    """
    seen, locations = seen_of(scheduler), getattr(made, "out_cache_loc", None)
    seen.marked = None
    if not isinstance(locations, torch.Tensor) or spans is None or len(spans) != len(requests):
        return
    places = [(row, token) for row, (begins, stops) in enumerate(spans) for token in range(begins, stops)]
    slots = locations.flatten().long()
    if len(places) != slots.numel() or not places:
        return
    seen.before = {}
    by_pool = {"full": slots, "swa": _of_window(scheduler, slots)}
    for part, buffer, own in _written(scheduler, by_pool):
        inside = own[own > 0]
        if (part.pool, part.layer, part.what) in seen.stores:
            buffer[inside] = _MARK
        else:
            seen.before[part.pool, part.layer, part.what] = buffer[inside[:_LEARNT]].clone()
    own = {name: of for name, of in by_pool.items() if of is not None}
    seen.marked = Marked(made, slots, own, [row for row, _ in places], [token for _, token in places])


def check_marked(scheduler: Any, requests: Sequence[Any], site: str, made: Any = None) -> bool:
    """Report slots that the forward was to write and did not, and say whether there are any.

    Args:
        scheduler: Whose pools they are.
        requests: Those of the batch.
        site: The function of SGLang's before which, or behind which, the forward has ended.
        made: The forward's batch, where that is known: what another one is to write is not looked at.
    """
    seen = seen_of(scheduler)
    marked, seen.marked = seen.marked, None
    if marked is None or max(marked.rows) >= len(requests) or (made is not None and made is not marked.forward):
        return False
    left: list[tuple[Part, torch.Tensor]] = []
    for part, buffer, own in _written(scheduler, marked.own):
        name, inside = (part.pool, part.layer, part.what), own[own > 0]
        if name in seen.stores:
            left.append((part, (buffer[own] == _MARK).flatten(1).all(dim=1) & (own > 0)))
        elif name in seen.before and _differ(buffer[inside[:_LEARNT]], seen.before[name]):
            seen.stores.add(name)
    seen.before = {}
    if not left:
        return False
    still = torch.stack([rows for _, rows in left])
    if not bool(still.any()):
        return False
    number, row = still.nonzero()[0].tolist()
    part, tokens = left[number][0], still.any(dim=0)
    places = tokens.nonzero().flatten().tolist()
    wrong = [WrongEntry("not stored", marked.rows[one], marked.tokens[one], int(marked.slots[one])) for one in places]
    slots = [held(request).req_pool_idx for request in requests]
    had = {
        "as_before": None,
        "tokens_wrong": len(places),
        "tokens_new": len(marked.rows),
        "parts_wrong": int(still.any(dim=1).sum()),
        "parts_known": len(left),
        "layer": part.layer,
        "pool": part.pool,
        "part": part.what,
        "forward_mode": getattr(marked.forward.forward_mode, "name", None),
    }
    first = marked.rows[row], marked.tokens[row]
    summary = f"a forward has stored no {part.what} of token {first[1]} of request slot {slots[first[0]]} in layer "
    summary += f"{part.layer} ({part.pool} pool; {len(places)} of its {len(marked.rows)} tokens)"
    report_wrong(scheduler, wrong, NOT_STORED, site, _KEYS, [None] * len(wrong), None, slots, had=had, summary=summary)
    return True


def _of_window(scheduler: Any, slots: torch.Tensor) -> torch.Tensor | None:
    """Return the SWA slots of these full ones; None where the allocator has no map of them."""
    has_map = getattr(scheduler.token_to_kv_pool_allocator, "full_to_swa_index_mapping", None) is not None
    return translated(scheduler, slots) if has_map else None


def _differ(now: torch.Tensor, before: torch.Tensor) -> bool:
    """Return whether any bit of as many rows has changed."""
    bits = torch.uint8
    return now.shape == before.shape and not torch.equal(now.contiguous().view(bits), before.contiguous().view(bits))


def _written(
    scheduler: Any, by_pool: Mapping[str, torch.Tensor | None]
) -> Iterator[tuple[Part, torch.Tensor, torch.Tensor]]:
    """Yield each buffer that is known as numbers, and which of its slots these are; 0 of one that it has not."""
    for part in parts_of(scheduler):
        own = by_pool.get(part.pool)
        # A kernel may not write numbers of 8 bits as torch does.
        if own is None or part.buffer is None or part.buffer.dtype.itemsize == 1:
            continue
        yield part, part.buffer, torch.where((own > 0) & (own < len(part.buffer)), own, 0)
