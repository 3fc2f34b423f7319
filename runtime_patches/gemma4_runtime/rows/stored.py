"""What `request-rows` asks of a forward: it stores keys and values in every slot that it is to write.

Before a forward of the target the slots of its new tokens get a number in each layer that no row of keys or values
consists of; where it still stands as the logits are there, nothing was stored. Nobody reads those slots in between:
a forward stores first. A layer is looked at once a forward was seen to store there: some have buffers that nobody uses,
and after some forwards that stored nothing it is left alone.

This runs over every buffer of a model in each step: what is the same for all buffers of a pool is made once, and the
device is asked once at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from gemma4_runtime.checks.request_rows import WrongEntry
from gemma4_runtime.release.requests import held
from gemma4_runtime.rows.finite import Part, parts_of, translated
from gemma4_runtime.rows.kept import note_written
from gemma4_runtime.rows.report import NOT_STORED, report_wrong
from gemma4_runtime.rows.seen import seen_of

_MARK = 2.0**-6
"""Small, so that whoever reads it by mistake goes on with numbers, and exact in every format of a cache."""
_KEYS = "keys and values"
_LEARNT = 256
"""Slots of a forward by which a buffer's use is learnt."""
_FORWARDS = 8
"""After so many that stored nothing in a buffer, nobody uses it."""


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
    parts = list(_written(scheduler))
    own = {name: _inside(scheduler, name, of) for name, of in _by_pool(scheduler, slots).items()}
    places_of = {name: of[of > 0] for name, of in own.items()}
    for part, buffer in parts:
        name, inside = (part.pool, part.layer, part.what), places_of.get(part.pool)
        if inside is None:
            continue
        if name in seen.stores:
            buffer.index_fill_(0, inside, _MARK)
        elif seen.unused.get(name, 0) < _FORWARDS:
            seen.before[name] = buffer[inside[:_LEARNT]].clone()
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
    own_of = {name: (own, own > 0, own[own > 0][:_LEARNT]) for name, own in marked.own.items()}
    left: list[tuple[Part, torch.Tensor]] = []
    for part, buffer in _written(scheduler):
        name = part.pool, part.layer, part.what
        if part.pool not in own_of:
            continue
        own, inside, some = own_of[part.pool]
        if name in seen.stores:
            left.append((part, (buffer[own] == _MARK).flatten(1).all(dim=1).logical_and_(inside)))
        elif name in seen.before:
            if _differ(buffer[some], seen.before[name]):
                seen.stores.add(name)
            else:
                seen.unused[name] = seen.unused.get(name, 0) + 1
    seen.before = {}
    if not left:
        note_written(scheduler, marked.forward, marked.own)
        return False
    still = torch.stack([rows for _, rows in left])
    if not bool(still.any()):
        note_written(scheduler, marked.forward, marked.own)
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


def _by_pool(scheduler: Any, slots: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return these full slots and, where the allocator has a map of them, their SWA slots."""
    has_map = getattr(scheduler.token_to_kv_pool_allocator, "full_to_swa_index_mapping", None) is not None
    return {"full": slots} | ({"swa": translated(scheduler, slots)} if has_map else {})


def _inside(scheduler: Any, pool: str, own: torch.Tensor) -> torch.Tensor:
    """Return a pool's slots, 0 in place of one that any of its buffers has not."""
    sizes = (len(part.buffer) for part in parts_of(scheduler) if part.pool == pool and part.buffer is not None)
    return torch.where((own > 0) & (own < min(sizes, default=0)), own, 0)


def _differ(now: torch.Tensor, before: torch.Tensor) -> bool:
    """Return whether any bit of as many rows has changed."""
    bits = torch.uint8
    return now.shape == before.shape and not torch.equal(now.contiguous().view(bits), before.contiguous().view(bits))


def _written(scheduler: Any) -> Iterator[tuple[Part, torch.Tensor]]:
    """Yield each buffer that is known as numbers. A kernel may not write numbers of 8 bits as torch does."""
    for part in parts_of(scheduler):
        if part.buffer is not None and part.buffer.dtype.itemsize > 1:
            yield part, part.buffer
