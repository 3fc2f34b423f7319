"""What `request-rows` asks of keys and values that stand: nobody but a forward of the target changes them.

Behind a forward every slot that it wrote gets two sums of the bits that stand there, over all layers; before the next
one those that its requests read are summed up again. The second sum counts the first layer's keys once, its values
twice, and so on, so that the two differences name the part that changed, if it is one.

Whoever else stores there in the service of SGLang is not watched for: where the prefix cache has a host pool, or
another server fills the pool, nothing is asked, nor of verifications of several branches, whose keys are moved, nor
where a pool has buffers of another form than a slot in each row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gemma4_runtime.by_identity import ByIdentity
from gemma4_runtime.checks.request_rows import WrongEntry
from gemma4_runtime.release.requests import held
from gemma4_runtime.rows.finite import Part, parts_of, translated
from gemma4_runtime.rows.report import INIT, KEPT, report_wrong

_KEYS = "keys and values"
_AT_ONCE = 4096
"""Tokens of one pool that are looked at before a forward; of more, others the next time."""
_OTHER_WRITERS = ("enable_hierarchical_cache", "enable_lmcache", "hicache_storage_backend")


class Sums:
    """What stood in the slots of one pool behind the forward that wrote them.

    Attributes:
        parts: Its keys and values, by layer.
        plain: int64 [slots], the sum of the bits of all parts.
        counted: int64 [slots], the same with the first part once, the second twice, and so on.
        step: int32 [slots], in which step that was; 0 where nothing is known.
        begin: Of more tokens than are looked at before a forward, the first of those of the next one.
    """

    def __init__(self, parts: Sequence[Part], slots: int, device: torch.device) -> None:
        self.parts = parts
        self.plain, self.counted = (torch.zeros(slots, dtype=torch.int64, device=device) for _ in range(2))
        self.step = torch.zeros(slots, dtype=torch.int32, device=device)
        self.begin = 0

    def of(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return both sums of what stands in these slots now, int64 [n] each."""
        plain, counted = (torch.zeros(slots.numel(), dtype=torch.int64, device=slots.device) for _ in range(2))
        for number, part in enumerate(self.parts, 1):
            assert part.buffer is not None
            # As bytes, since torch gathers numbers of 8 bits on no device as such.
            bits = part.buffer.view(torch.uint8).index_select(0, slots).flatten(1)
            words = bits.view(torch.int32) if bits.shape[1] % 4 == 0 else bits
            one = words.sum(dim=1, dtype=torch.int64)
            plain += one
            counted.add_(one, alpha=number)
        return plain, counted

    def part_changed(self, plain: int, counted: int) -> Part | None:
        """Return which part alone changes the sums by these differences; None where several do."""
        number, rest = divmod(counted, plain) if plain else (0, 0)
        return self.parts[number - 1] if plain and not rest and 0 < number <= len(self.parts) else None


class Kept:
    """The sums of each pool of one scheduler; none where somebody else stores in its slots, too.

    Attributes:
        pools: By pool, its sums.
    """

    def __init__(self, scheduler: Any) -> None:
        self.pools: dict[str, Sums] = {}
        parts = list(parts_of(scheduler))
        if _has_other_writers(scheduler) or not all(map(_has_rows_of_bytes, parts)):
            return
        for name in dict.fromkeys(part.pool for part in parts):
            of_pool = [part for part in parts if part.pool == name]
            buffers = [part.buffer for part in of_pool if part.buffer is not None]
            self.pools[name] = Sums(of_pool, min(map(len, buffers)), buffers[0].device)


def _has_rows_of_bytes(part: Part) -> bool:
    return part.buffer is not None and part.buffer.stride(-1) == 1


_KEPT: ByIdentity[Kept] = ByIdentity()


def _kept_of(scheduler: Any) -> Kept:
    return _KEPT.get(scheduler) or _KEPT.put(scheduler, Kept(scheduler))


def _has_other_writers(scheduler: Any) -> bool:
    asked = getattr(scheduler, "server_args", None)
    served_by_others = getattr(asked, "disaggregation_mode", "null") not in ("null", None)
    return served_by_others or any(getattr(asked, name, None) for name in _OTHER_WRITERS)


def _moves_keys(scheduler: Any, made: Any) -> bool:
    """Return whether what a forward stores is moved behind it, as a verification of several branches does."""
    branches = getattr(getattr(scheduler, "server_args", None), "speculative_eagle_topk", None)
    return made.forward_mode.is_target_verify() and branches not in (None, 1)


def forget_written(scheduler: Any, made: Any) -> None:
    """Forget the slots that a forward of the target is about to write; of all, where it does not say which."""
    pools, locations = _kept_of(scheduler).pools, getattr(made, "out_cache_loc", None)
    for name, sums in pools.items():
        if not isinstance(locations, torch.Tensor):
            sums.step.zero_()
            continue
        slots = locations.flatten().long()
        slots = translated(scheduler, slots) if name == "swa" else slots
        sums.step[slots[(slots > 0) & (slots < sums.step.numel())]] = 0


def note_written(scheduler: Any, made: Any, own: dict[str, torch.Tensor]) -> None:
    """Sum up what a forward of the target has written.

    Args:
        scheduler: Whose pools they are.
        made: The forward's batch.
        own: By pool, the slots of its buffers, 0 for none.
    """
    if _moves_keys(scheduler, made):
        return
    for name, sums in _kept_of(scheduler).pools.items():
        if (slots := own.get(name)) is None:
            continue
        slots = slots[(slots > 0) & (slots < sums.step.numel())]
        sums.plain[slots], sums.counted[slots] = sums.of(slots)
        sums.step[slots] = int(scheduler.forward_ct)


def check_kept(scheduler: Any, requests: Sequence[Any], made: Any, spans: Sequence[tuple[int, int]] | None) -> bool:
    """Report tokens that a forward is about to read whose keys or values are not what was stored; say if there are any.

    Args:
        scheduler: Whose pools they are.
        requests: Those of the batch.
        made: The forward's batch.
        spans: Of each request, from where to where the forward's own tokens stand: it reads those before.
    """
    kept = _kept_of(scheduler)
    if not kept.pools or spans is None or len(spans) != len(requests):
        return False
    table, slots = scheduler.req_to_token_pool.req_to_token, [held(request).req_pool_idx for request in requests]
    read = [
        (row, table[slot, : min(begins, table.shape[1])].long())
        for row, (slot, (begins, _)) in enumerate(zip(slots, spans, strict=True))
        if slot is not None and begins > 0
    ]
    if not read:
        return False
    full = torch.cat([entries for _, entries in read])
    places = [(row, token) for row, entries in read for token in range(entries.numel())]
    return any(
        _report_changed(
            scheduler, name, sums, translated(scheduler, full) if name == "swa" else full, places, slots, made
        )
        for name, sums in kept.pools.items()
    )


def _report_changed(
    scheduler: Any,
    pool: str,
    sums: Sums,
    own: torch.Tensor,
    places: Sequence[tuple[int, int]],
    slots: Sequence[int | None],
    made: Any,
) -> bool:
    """Report the tokens of one pool that have changed; say if there are any. `own`: its slot of each of `places`."""
    inside = (own > 0) & (own < sums.step.numel())
    known = (inside & (sums.step[torch.where(inside, own, 0)] > 0)).nonzero().flatten()
    if known.numel() > _AT_ONCE:
        begin = sums.begin % known.numel()
        sums.begin = begin + _AT_ONCE
        known = known.roll(-begin)[:_AT_ONCE].sort().values
    if not known.numel():
        return False
    at = own[known]
    plain, counted = sums.of(at)
    changed = (plain != sums.plain[at]) | (counted != sums.counted[at])
    if not bool(changed.any()):
        return False
    first_of: dict[int, int] = {}
    for one in changed.nonzero().flatten().tolist():
        # Requests that share a prefix read the same slots of it.
        first_of.setdefault(int(at[one]), one)
    number = list(first_of.values())
    bad = at[number]
    by = (plain - sums.plain[at])[number].tolist(), (counted - sums.counted[at])[number].tolist()
    parts = {sums.part_changed(*both) for both in zip(*by, strict=True)}
    part = parts.pop() if len(parts) == 1 else None
    of = [places[int(one)] for one in known[number].tolist()]
    wrong = [WrongEntry("changed", row, token, int(slot)) for (row, token), slot in zip(of, bad.tolist(), strict=True)]
    # What is reported once is as it is from here on.
    sums.plain[bad], sums.counted[bad] = plain[number], counted[number]
    (row, token), first = of[0], int(bad[0])
    had = {
        "as_before": None,
        "tokens_changed": len(wrong),
        "tokens_looked_at": int(known.numel()),
        "stored_in_step": int(sums.step[first]),
        "pool": pool,
        "layer": None if part is None else part.layer,
        "part": None if part is None else part.what,
        "stands_there": _what_stands(sums, part, first, int(plain[number[0]]), int(counted[number[0]])),
    }
    which = "keys or values" if part is None else f"{part.what} in layer {part.layer}"
    summary = (
        f"{which} of token {token} of request slot {slots[row]} are not those that its forward stored ({pool} pool; "
    )
    summary += f"{len(wrong)} tokens)"
    kinds = [None] * len(wrong)
    report_wrong(scheduler, wrong, KEPT, INIT, _KEYS, kinds, made, slots, had=had, summary=summary)
    return True


def _what_stands(sums: Sums, part: Part | None, slot: int, plain: int, counted: int) -> str | None:
    """Return what stands in a slot now, in a word or two; None where it is numbers as any."""
    buffers = [one.buffer for one in ([part] if part is not None else sums.parts)]
    rows = [buffer[slot].float() for buffer in buffers if buffer is not None]
    if all(not bool(row.any()) for row in rows):
        return "zeros"
    if any(bool(torch.isnan(row).any()) for row in rows):
        return "NaN"
    same = (sums.plain == plain) & (sums.counted == counted) & (sums.step > 0)
    same[slot] = False
    copied = same.nonzero().flatten().tolist()
    return f"what slot {copied[0]} has" if copied else None
