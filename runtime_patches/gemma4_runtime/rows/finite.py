"""What `request-rows` asks of numbers: no logit is NaN, nor the hidden state that a draft begins with.

A NaN in one token's keys makes all logits NaN of whoever reads them, and the sampler takes some token all the same.
Where logits are, the keys and values that the request reads are looked through for what it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from gemma4_runtime.checks.request_rows import WrongEntry
from gemma4_runtime.release import envs
from gemma4_runtime.release.prefix_caches import retain_window
from gemma4_runtime.release.requests import held, stay_of
from gemma4_runtime.rows.places import spans_of
from gemma4_runtime.rows.report import DRAFT_POSITIONS, FINITE, SAMPLER, report_wrong
from gemma4_runtime.rows.seen import seen_of

LOGITS, HIDDEN = "logits", "hidden states"
_NOTHING = -1
_AT_ONCE = 4096
"""Tokens of one buffer that are looked at together."""


class Part(NamedTuple):
    """One buffer of one layer, [slots, heads, head dim]; None where it is of another form, or no numbers."""

    pool: str
    layer: int
    what: str
    buffer: torch.Tensor | None


def note_spans(scheduler: Any, requests: Sequence[Any], made: Any) -> None:
    """Note, before a forward of the target, from where to where the tokens of each of its requests stand."""
    slots = [held(request).req_pool_idx for request in requests]
    seen_of(scheduler).spans = dict(zip(slots, spans_of(made) or (), strict=False))


def check_logits(scheduler: Any, requests: Sequence[Any], logits: torch.Tensor | None, site: str) -> bool:
    """Find requests of which the target's logits are NaN, before anything is sampled of them; say if all are numbers.

    Minus infinity is what a grammar gives tokens it forbids. Where SGLang itself replaces NaN, nothing is known.

    Args:
        scheduler: Whose requests they are.
        requests: Those of the batch.
        logits: [rows, vocabulary], as many rows for each request; None where nothing is sampled.
        site: The function of SGLang's that is given them.
    """
    sanitises = getattr(envs, "SGLANG_SANITIZE_NAN_LOGITS", None)
    if logits is None or not requests or logits.ndim != 2 or logits.shape[0] % len(requests) or not logits.numel():
        return False
    if sanitises is not None and sanitises.get():
        return False
    rows, seen = _rows_with_nan(logits, len(requests)), seen_of(scheduler)
    slots = [held(request).req_pool_idx for request in requests]
    if not rows:
        for slot, request in zip(slots, requests, strict=True):
            if isinstance(slot, int) and slot in seen.spans:
                seen.finite[slot] = (stay_of(request), seen.spans[slot][1])
        return True
    wrong = [WrongEntry("logits", row, 0, 1, 0) for row in rows]
    slot, request = slots[rows[0]], requests[rows[0]]
    had = {"as_before": None, "rows_wrong": len(rows), "requests": len(requests)}
    if isinstance(slot, int) and slot in seen.spans:
        had |= _stored(scheduler, slot, seen.spans[slot])
        had["finite_until"] = finite_until(scheduler, request)
    summary = f"logits of the request in slot {slot} are NaN, and of {len(rows)} of {len(requests)} requests"
    report_wrong(scheduler, wrong, FINITE, site, LOGITS, [None] * len(wrong), None, slots, had=had, summary=summary)
    return False


def check_handed(scheduler: Any, requests: Sequence[Any], logits: torch.Tensor) -> None:
    """Find requests of which logits are NaN as the sampler is handed them, which were numbers behind the forward.

    Args:
        scheduler: Whose requests they are.
        requests: Those of the batch.
        logits: [rows, vocabulary], as many rows for each request.
    """
    if logits.ndim != 2 or logits.shape[0] % len(requests) or not (rows := _rows_with_nan(logits, len(requests))):
        return
    slots = [held(request).req_pool_idx for request in requests]
    wrong, kinds = [WrongEntry("handed", row, 0, 1, 0) for row in rows], [None] * len(rows)
    had = {"as_before": None, "rows_wrong": len(rows), "requests": len(requests), "logits_were_numbers": True}
    summary = f"the sampler is handed logits that are NaN, of the request in slot {slots[rows[0]]}"
    report_wrong(scheduler, wrong, FINITE, SAMPLER, LOGITS, kinds, None, slots, had=had, summary=summary)


def check_hidden(scheduler: Any, requests: Sequence[Any], forward_batch: Any) -> None:
    """Find requests of which the hidden state is NaN that a draft is handed as it begins."""
    hidden = getattr(getattr(forward_batch, "spec_info", None), "hidden_states", None)
    if hidden is None or hidden.ndim != 2 or not hidden.numel() or hidden.shape[0] % len(requests):
        return
    rows = _rows_with_nan(hidden, len(requests))
    if not rows:
        return
    slots = [held(request).req_pool_idx for request in requests]
    wrong, request = [WrongEntry("hidden", row, 0, 1, 0) for row in rows], requests[rows[0]]
    span = seen_of(scheduler).spans.get(slots[rows[0]])
    # Of the target's forward that gave it.
    known = span is not None and finite_until(scheduler, request) == span[1]
    had = {"as_before": None, "rows_wrong": len(rows), "requests": len(requests), "logits_were_numbers": known}
    summary = f"the draft begins with a hidden state that is NaN, of the request in slot {slots[rows[0]]}"
    kinds = [None] * len(wrong)
    report_wrong(
        *(scheduler, wrong, FINITE, DRAFT_POSITIONS, HIDDEN, kinds, forward_batch, slots),
        had=had,
        role="draft",
        summary=summary,
    )


def finite_until(scheduler: Any, request: Any) -> int | None:
    """Return up to which token of a request the target's last forward with numbers went; None if none is known."""
    known = seen_of(scheduler).finite.get(held(request).req_pool_idx)
    return known[1] if known is not None and known[0] == stay_of(request) else None


def _rows_with_nan(values: torch.Tensor, requests: int) -> list[int]:
    return torch.isnan(values).any(dim=-1).view(requests, -1).any(dim=-1).nonzero().flatten().tolist()


def _stored(scheduler: Any, slot: int, span: tuple[int, int]) -> dict[str, Any]:
    """Return where the keys and values that a request reads are not finite, the first layer of the first such token.

    `nan_tokens`: how many of its tokens have such a number, in any layer, of those before `nan_begins`, where the
    forward's own begin: these have it in every layer behind the first. `nan_place` is -1 where none has, and is left
    out where not every buffer could be looked at and none was found.
    """
    begins, stops = span
    table = scheduler.req_to_token_pool.req_to_token
    row = table[slot, : min(stops, table.shape[1])].long()
    bad = torch.zeros(row.numel(), dtype=torch.bool, device=row.device)
    first: tuple[int, Part] | None = None
    every, window = True, retain_window(getattr(scheduler.tree_cache, "inner", scheduler.tree_cache))
    for part in parts_of(scheduler):
        if part.buffer is None:
            every = False
            continue
        slots = translated(scheduler, row) if part.pool == "swa" else row
        wrong = _not_finite(part.buffer, slots)
        if part.pool == "swa" and window is not None:
            # What has left the window of the first query is not read.
            wrong[: max(begins - window, 0)] = False
        bad |= wrong
        old = wrong[:begins].nonzero().flatten().tolist()
        if old and (first is None or (old[0], part.layer) < (first[0], first[1].layer)):
            first = old[0], part
    found = {"nan_begins": begins, "nan_tokens": int(bad[:begins].sum()), "nan_new": int(bad[begins:].sum())}
    if first is None:
        return found | ({"nan_place": _NOTHING} if every else {})
    place, part = first
    return found | {"nan_place": place, "nan_layer": part.layer, "nan_pool": part.pool, "nan_part": part.what}


def _not_finite(buffer: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """Return of which slots, [n], a buffer has a number that is not finite: bool [n]. Others than its own have none."""
    wrong = torch.zeros(slots.numel(), dtype=torch.bool, device=slots.device)
    for begins in range(0, slots.numel(), _AT_ONCE):
        some = slots[begins : begins + _AT_ONCE]
        inside = (some > 0) & (some < len(buffer))
        values = buffer[torch.where(inside, some, 0)]
        values = values if values.dtype.itemsize > 1 else values.float()
        wrong[begins : begins + _AT_ONCE] = inside & ~torch.isfinite(values).flatten(1).all(dim=1)
    return wrong


def translated(scheduler: Any, row: torch.Tensor) -> torch.Tensor:
    """Return the SWA slots of a row's full ones; 0 of what is no slot of the full pool."""
    mapping = scheduler.token_to_kv_pool_allocator.full_to_swa_index_mapping
    inside = (row > 0) & (row < mapping.numel() - 1)
    return torch.where(inside, mapping[torch.where(inside, row, 0)].long(), 0)


def parts_of(scheduler: Any) -> Iterator[Part]:
    """Yield the keys and values of each layer."""
    cache = scheduler.token_to_kv_pool_allocator.get_kvcache()
    hybrid = [(name, getattr(cache, f"{name}_kv_pool", None)) for name in ("full", "swa")]
    mapping = getattr(cache, "layers_mapping", {})
    for name, pool in hybrid if hybrid[0][1] is not None else [("full", cache)]:
        ids = {number: layer for layer, (number, is_swa) in mapping.items() if is_swa == (name == "swa")}
        buffers = [(what, getattr(pool, f"{what[0]}_buffer", None)) for what in ("keys", "values")]
        for what, of_layers in buffers:
            if not isinstance(of_layers, (list, tuple)):
                yield Part(name, 0, what, None)
                continue
            for number, buffer in enumerate(of_layers):
                yield Part(name, ids.get(number, number), what, _numbers(pool, buffer))


def _numbers(pool: Any, buffer: Any) -> torch.Tensor | None:
    """Return a buffer as numbers, a slot in each row; None where it is packed, or has a page in each row."""
    if not isinstance(buffer, torch.Tensor) or buffer.ndim != 3:
        return None
    stored, meant = getattr(pool, "store_dtype", buffer.dtype), getattr(pool, "dtype", buffer.dtype)
    if not buffer.dtype.is_floating_point and stored != meant and meant.is_floating_point:
        buffer = buffer.view(meant) if meant.itemsize == buffer.dtype.itemsize else buffer
    return buffer if buffer.dtype.is_floating_point else None
