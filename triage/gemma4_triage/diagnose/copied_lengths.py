"""Which of the two copies of a batch's lengths is wrong, the host's or the device's, by the decode before."""

from gemma4_dumps.reader import Dump
from gemma4_triage.diagnose.evidence import readable_events, tensor_or_none

COPIED = {"host": "seq_lens_cpu", "device": "seq_lens"}
"""The columns of the tensor `lengths` of a dump of `swa-alloc-lengths`, with SGLang's names."""


def not_filtered(dump: Dump) -> tuple[str, int]:
    """Return which copy of the lengths kept requests that have left the batch, and the event of the decode before.

    An empty name where that is not told: one copy goes on from that decode's first lengths, the other from some.
    """
    records, lengths = readable_events(dump), tensor_or_none(dump, "lengths")
    decodes = [number for number, one in enumerate(records[:-1]) if one.get("call") == "alloc_decode"]
    had = records[decodes[-1]].get("seq_lens") if decodes else None
    if not isinstance(had, list) or lengths is None or lengths.ndim != 2 or lengths.shape[1] != len(COPIED):
        return "", 0
    grown, left = [int(one) + 1 for one in had], len(lengths)
    copies = dict(zip(COPIED, lengths.T.tolist(), strict=True))
    kept = [name for name, copy in copies.items() if left < len(grown) and copy == grown[:left]]
    others = [copy for name, copy in copies.items() if name not in kept]
    told = len(kept) == 1 and all(count in grown for copy in others for count in copy)
    return (kept[0], decodes[-1]) if told else ("", 0)


def miscounted(dump: Dump) -> tuple[str, int, int]:
    """Return which copy was not counted up with the tokens, by how much it is wrong, and the decode before.

    A request that goes on from the slot which that decode gave it has a token more than then, and no other number. An
    empty name where that does not tell of every length that differs that one copy, and it alone, is off by one.
    """
    records, lengths = readable_events(dump), tensor_or_none(dump, "lengths")
    at = next((n for n in range(len(records) - 2, -1, -1) if records[n].get("call") == "alloc_decode"), None)
    if at is None or lengths is None or lengths.ndim != 2 or lengths.shape[1] != len(COPIED):
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
