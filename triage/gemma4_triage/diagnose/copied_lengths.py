"""Which of the two copies of a batch's lengths is wrong, the host's or the device's, by the decode before."""

from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np

from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose.evidence import readable_events, tensor_or_none
from gemma4_triage.diagnose.recorded_calls import slots_of, spans

COPIED = {"host": "seq_lens_cpu", "device": "seq_lens"}
"""The columns of the tensor `lengths` of a dump of `swa-alloc-lengths`, with SGLang's names."""
_OTHER_ORDER = (
    " Both have the same lengths, each at another request: one of them was put together in another order, or counted "
    "up in one."
)
_WHOSE_ORDER = " It is the {copy}'s: by the slots that requests go on from, the other has each one's own."
AT_ORDER = "Look at the order in which merge_batch and filter_batch put seq_lens and seq_lens_cpu together."


def not_filtered(dump: Dump) -> tuple[str, int]:
    """Return which copy of the lengths kept requests that have left the batch, and the event of the decode before.

    An empty name where that is not told: one copy goes on from that decode's first lengths, the other from some. It is
    right so where the first of the batch are those who stayed, by the slots that they go on from. Who asks for these is
    the device's copy: if it is wrong, some are none of that decode's.
    """
    records, lengths = readable_events(dump), tensor_or_none(dump, "lengths")
    decodes = [number for number, one in enumerate(records[:-1]) if one.get("call") == "alloc_decode"]
    had = records[decodes[-1]].get("seq_lens") if decodes else None
    if not isinstance(had, list) or not _is_of_a_decode(dump):
        return "", 0
    grown, left = [int(one) + 1 for one in had], len(lengths)
    copies = dict(zip(COPIED, lengths.T.tolist(), strict=True))
    kept = [name for name, copy in copies.items() if left < len(grown) and copy == grown[:left]]
    others = [copy for name, copy in copies.items() if name not in kept]
    told = len(kept) == 1 and all(count in grown for copy in others for count in copy)
    given, last = slots_of(records[decodes[-1]].get("full")), records[-1].get("last_loc") or ()
    stayed = [given.index(slot) if slot in given else None for slot in last]
    told = told and len(given) == len(grown) and stayed != list(range(left))
    told = told and (None not in stayed or kept[0] == "device")
    return (kept[0], decodes[-1]) if told else ("", 0)


def miscounted(dump: Dump) -> tuple[str, int, int]:
    """Return which copy was not counted up with the tokens, by how much it is wrong, and the decode before.

    A request that goes on from the slot which that decode gave it has a token more than then, and no other number. An
    empty name where that does not tell of every length that differs that one copy, and it alone, is off by one.
    """
    records, lengths = readable_events(dump), tensor_or_none(dump, "lengths")
    at = next((n for n in range(len(records) - 2, -1, -1) if records[n].get("call") == "alloc_decode"), None)
    if at is None or not _is_of_a_decode(dump):
        return "", 0, 0
    try:
        given = {first: had for (first, _), had in zip(records[at]["full"], records[at]["seq_lens"], strict=True)}
        last = [given.get(slot) for slot in records[-1]["last_loc"]]
    except (KeyError, TypeError, ValueError):
        return "", 0, 0
    off = set()
    for had, copies in zip(last, lengths.tolist(), strict=False):
        if copies[0] != copies[1]:
            off.add(None if had is None else tuple(copy - had - 1 for copy in copies))
    pair = off.pop() if len(off) == 1 else None
    # One copy is right; the other is what it was, or was counted twice.
    if pair is None or 0 not in pair or not {*pair} & {-1, 1}:
        return "", 0, 0
    which = pair.index(0) ^ 1
    return tuple(COPIED)[which], pair[which], at


def reordered(dump: Dump) -> str | None:
    """Return which copy has the lengths of the other in another order, "" where that is not told; None if neither.

    A request goes on from the last slot that an earlier call gave it, with as many tokens as it had then, and one more.
    Which slot that is, the device's copy says: one that a later call went on from already is too old for it.
    """
    records, lengths = readable_events(dump), tensor_or_none(dump, "lengths")
    if not _is_there(lengths) or sorted(lengths[:, 0]) != sorted(lengths[:, 1]):
        return None
    if not _is_of_a_decode(dump):
        return ""
    had, last_loc = _lengths_by_last_slot(records[:-1]), records[-1].get("last_loc") if records else None
    passed = _gone_on_from(records[:-1])
    last = [had.get(slot) for slot in last_loc] if isinstance(last_loc, list) else []
    differs = [copies[0] != copies[1] for copies in lengths.tolist()]
    known = [
        (one + 1, copies) for one, copies in zip(last, lengths.tolist(), strict=False) if one and copies[0] != copies[1]
    ]
    if any(here and slot in passed for here, slot in zip(differs, last_loc or (), strict=False)):
        return "device"
    wrong = [name for at, name in enumerate(COPIED) if all(copies[at] != one for one, copies in known)]
    right = [name for at, name in enumerate(COPIED) if all(copies[at] == one for one, copies in known)]
    return wrong[0] if len(known) > 1 and len(wrong) == len(right) == 1 and wrong != right else ""


def _is_there(lengths: np.ndarray | None) -> TypeGuard[np.ndarray]:
    return lengths is not None and lengths.ndim == 2 and lengths.shape[1] == len(COPIED)


def _is_of_a_decode(dump: Dump) -> bool:
    """Return whether the two copies are of a decode's lengths.

    Of a prompt that is read on they may be those of its prefix, whose last slot others go on from as well.
    """
    records = readable_events(dump)
    return bool(records) and records[-1].get("call") == "alloc_decode" and _is_there(tensor_or_none(dump, "lengths"))


def _lengths_by_last_slot(records: list[Mapping[str, Any]]) -> dict[int, int]:
    """Return how many tokens a request had when a call gave it its last slot, by that."""
    found: dict[int, int] = {}
    for call in records:
        slots, ends = slots_of(call.get("full")), call.get("seq_lens")
        for at, first, end in spans(call) if str(call.get("call")).startswith("alloc_") else ():
            if isinstance(ends, list) and first < end <= len(slots) and isinstance(ends[at], int):
                found[slots[end - 1]] = ends[at]
    return found


def _gone_on_from(records: list[Mapping[str, Any]]) -> set[int]:
    """Return the slots that a decode went on from, and that none gave anew since.

    What a prompt goes on from may be a prefix that it shares.
    """
    passed: set[int] = set()
    for call in records:
        if call.get("call") != "alloc_decode" or call.get("full") is None:
            passed.difference_update(slots_of(call.get("full")))
            continue
        asked = call.get("last_loc")
        passed.update(slot for slot in asked if isinstance(slot, int) and slot > 0) if isinstance(asked, list) else None
        passed.difference_update(slots_of(call.get("full")))
    return passed


def in_order(copy: str) -> str:
    """Return what is said of lengths in another order.

    Args:
        copy: Which one is wrong, "" if that is not known.
    """
    return _OTHER_ORDER + (_WHOSE_ORDER.format(copy=copy) if copy else "")
