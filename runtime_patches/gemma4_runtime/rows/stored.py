"""What `request-rows` asks of a forward: it stores keys and values in every slot that it is to write.

Before a forward of the target the slots of its new tokens get a number in each layer that no row of keys or values
consists of; where it still stands as the logits are there, nothing was stored. Nobody reads those slots in between:
a forward stores first. A layer is looked at once a forward was seen to store there: some have buffers that nobody uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


class Marked(NamedTuple):
    """What a forward is to write: its slots of the full pool, and of each row that has one the request and token."""

    slots: torch.Tensor
    rows: list[int]
    tokens: list[int]
    mode: str | None


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
    for part, buffer, own in _written(scheduler, slots):
        inside = own[own > 0]
        if (part.pool, part.layer, part.what) in seen.stores:
            buffer[inside] = _MARK
        else:
            seen.before[part.pool, part.layer, part.what] = buffer[inside].clone()
    mode = getattr(made.forward_mode, "name", None)
    seen.marked = Marked(slots, [row for row, _ in places], [token for _, token in places], mode)


def check_stored(scheduler: Any, requests: Sequence[Any], site: str) -> bool:
    """Report slots that the forward was to write and did not, and say whether there are any.

    Args:
        scheduler: Whose pools they are.
        requests: Those of the batch.
        site: The function of SGLang's before which, or behind which, the forward has ended.
    """
    seen = seen_of(scheduler)
    marked, seen.marked = seen.marked, None
    if marked is None or max(marked.rows) >= len(requests):
        return False
    left: list[tuple[Part, torch.Tensor]] = []
    for part, buffer, own in _written(scheduler, marked.slots):
        name = part.pool, part.layer, part.what
        if name in seen.stores:
            left.append((part, (buffer[own] == _MARK).flatten(1).all(dim=1) & (own > 0)))
        elif name in seen.before and not torch.equal(buffer[own[own > 0]], seen.before[name]):
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
        "forward_mode": marked.mode,
    }
    first = marked.rows[row], marked.tokens[row]
    summary = f"a forward has stored no {part.what} of token {first[1]} of request slot {slots[first[0]]} in layer "
    summary += f"{part.layer} ({part.pool} pool; {len(places)} of its {len(marked.rows)} tokens)"
    report_wrong(scheduler, wrong, NOT_STORED, site, _KEYS, [None] * len(wrong), None, slots, had=had, summary=summary)
    return True


def _written(scheduler: Any, slots: torch.Tensor) -> Iterator[tuple[Part, torch.Tensor, torch.Tensor]]:
    """Yield each buffer that is known as numbers, and which of its slots these are; 0 of one that it has not."""
    of_window: torch.Tensor | None = None
    for part in parts_of(scheduler):
        if part.buffer is None or part.buffer.dtype.itemsize == 1:
            # A kernel may not write numbers of 8 bits as torch does.
            continue
        if part.pool == "swa" and of_window is None:
            of_window = translated(scheduler, slots)
        own = slots if part.pool != "swa" or of_window is None else of_window
        yield part, part.buffer, torch.where((own > 0) & (own < len(part.buffer)), own, 0)
