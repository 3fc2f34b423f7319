"""What `request-rows` asks of numbers: no logit is NaN, nor the hidden state that a draft begins with.

A NaN in one token's keys makes all logits NaN of whoever reads them, and the sampler takes some token all the same.
Where logits are, the keys and values that the request reads are looked through for what it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from gemma4_runtime.checks.request_rows import WrongEntry
from gemma4_runtime.release.requests import held
from gemma4_runtime.rows.places import spans_of
from gemma4_runtime.rows.report import DRAFT_POSITIONS, FINITE, RUN, report_wrong
from gemma4_runtime.rows.seen import seen_of

LOGITS, HIDDEN = "logits", "hidden states"
_NOTHING = -1


class _Part(NamedTuple):
    """One buffer of one layer: [slots, heads, head dim]."""

    pool: str
    layer: int
    what: str
    buffer: torch.Tensor


def note_spans(scheduler: Any, requests: Sequence[Any], made: Any) -> None:
    """Note, before a forward of the target, from where to where the tokens of each of its requests stand."""
    slots = [held(request).req_pool_idx for request in requests]
    seen_of(scheduler).spans = dict(zip(slots, spans_of(made) or (), strict=False))


def check_logits(scheduler: Any, requests: Sequence[Any], logits: torch.Tensor | None) -> None:
    """Find requests of which the target's logits are NaN. Minus infinity is what a grammar gives tokens it forbids.

    Args:
        scheduler: Whose requests they are.
        requests: Those of the batch.
        logits: [rows, vocabulary], as many rows for each request; None where nothing is sampled.
    """
    if logits is None or not requests or logits.ndim != 2 or logits.shape[0] % len(requests) or not logits.numel():
        return
    if logits.is_cuda:
        # With overlap they are another stream's.
        torch.cuda.synchronize(logits.device)
    rows = _rows_with_nan(logits, len(requests))
    if not rows:
        return
    slots = [held(request).req_pool_idx for request in requests]
    wrong = [WrongEntry("logits", row, 0, 1, 0) for row in rows]
    slot = slots[rows[0]]
    had = {"as_before": None, "rows_wrong": len(rows), "requests": len(requests)}
    if slot is not None:
        had |= _stored(scheduler, slot, seen_of(scheduler).spans.get(slot))
    summary = f"logits of the request in slot {slot} are NaN, and of {len(rows)} of {len(requests)} requests"
    report_wrong(scheduler, wrong, FINITE, RUN, LOGITS, [None] * len(wrong), None, slots, had=had, summary=summary)


def check_hidden(scheduler: Any, requests: Sequence[Any], forward_batch: Any) -> None:
    """Find requests of which the hidden state is NaN that a draft is handed as it begins."""
    hidden = getattr(getattr(forward_batch, "spec_info", None), "hidden_states", None)
    if hidden is None or hidden.ndim != 2 or not hidden.numel() or hidden.shape[0] % len(requests):
        return
    rows = _rows_with_nan(hidden, len(requests))
    if not rows:
        return
    slots = [held(request).req_pool_idx for request in requests]
    wrong = [WrongEntry("hidden", row, 0, 1, 0) for row in rows]
    had = {"as_before": None, "rows_wrong": len(rows), "requests": len(requests)}
    summary = f"the draft begins with a hidden state that is NaN, of the request in slot {slots[rows[0]]}"
    kinds = [None] * len(wrong)
    report_wrong(
        *(scheduler, wrong, FINITE, DRAFT_POSITIONS, HIDDEN, kinds, forward_batch, slots),
        had=had,
        role="draft",
        summary=summary,
    )


def _rows_with_nan(values: torch.Tensor, requests: int) -> list[int]:
    return torch.isnan(values).any(dim=-1).view(requests, -1).any(dim=-1).nonzero().flatten().tolist()


def _stored(scheduler: Any, slot: int, span: tuple[int, int] | None) -> dict[str, Any]:
    """Return where the keys and values that a request reads are not finite, the first layer of the first such token.

    `nan_tokens`: how many of its tokens have such a number, in any layer, of those before `nan_begins`, where the
    forward's own begin: these have it in every layer behind the first. -1 where none has.
    """
    if span is None:
        return {}
    begins, stops = span
    row = scheduler.req_to_token_pool.req_to_token[slot, :stops].long()
    bad = torch.zeros(stops, dtype=torch.bool, device=row.device)
    first: tuple[int, _Part] | None = None
    for part in _parts(scheduler):
        slots = _translated(scheduler, row) if part.pool == "swa" else row
        if part.buffer.ndim < 2 or not slots.numel() or int(slots.max()) >= len(part.buffer):
            continue
        wrong = ~torch.isfinite(part.buffer[slots].float()).reshape(stops, -1).all(dim=1)
        # What has no slot of the sliding-window pool is not read there.
        wrong &= slots > 0
        bad |= wrong
        old = wrong[:begins].nonzero().flatten().tolist()
        if old and (first is None or (old[0], part.layer) < (first[0], first[1].layer)):
            first = old[0], part
    found = {"nan_begins": begins, "nan_tokens": int(bad[:begins].sum()), "nan_new": int(bad[begins:].sum())}
    if first is None:
        return found | {"nan_place": _NOTHING}
    place, part = first
    return found | {"nan_place": place, "nan_layer": part.layer, "nan_pool": part.pool, "nan_part": part.what}


def _translated(scheduler: Any, row: torch.Tensor) -> torch.Tensor:
    mapping = scheduler.token_to_kv_pool_allocator.full_to_swa_index_mapping
    return mapping[row].long().clamp(min=0)


def _parts(scheduler: Any) -> Iterator[_Part]:
    """Yield the keys and values of each layer, of pools that have a buffer of each."""
    cache = scheduler.token_to_kv_pool_allocator.get_kvcache()
    hybrid = [(name, getattr(cache, f"{name}_kv_pool", None)) for name in ("full", "swa")]
    mapping = getattr(cache, "layers_mapping", {})
    for name, pool in hybrid if hybrid[0][1] is not None else [("full", cache)]:
        ids = {number: layer for layer, (number, is_swa) in mapping.items() if is_swa == (name == "swa")}
        for what, buffers in (("keys", "k_buffer"), ("values", "v_buffer")):
            for number, buffer in enumerate(getattr(pool, buffers, None) or ()):
                yield _Part(name, ids.get(number, number), what, buffer)
