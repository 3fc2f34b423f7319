"""What `request-rows` asks of where each request's queries and keys begin in a forward (cu_seqlens)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from gemma4_dumps.structures import Structure
from gemma4_runtime.checks.request_rows import WrongEntry
from gemma4_runtime.defects import defect_of
from gemma4_runtime.rows.report import LENGTH, METADATA, or_swapped, report_wrong

_QUERIES, _KEYS = "cu_seqlens_q", "cu_seqlens_k"


def check_bounds(
    scheduler: Any, metadata: Any, forward_batch: Any, rows: Sequence[int], lengths: Sequence[int]
) -> None:
    """Hold where each request's queries and keys end, by trtllm_mha's metadata of a target's forward, against lengths.

    Args:
        scheduler: Whose requests they are.
        metadata: `TRTLLMMHAMetadata`.
        forward_batch: The forward's batch.
        rows: Request slot of each request.
        lengths: Keys of each that a kernel is to read.
    """
    mode = forward_batch.forward_mode
    if getattr(metadata, "is_ragged_verify", False):
        return
    if mode.is_decode():
        queries = [1] * len(lengths)
    elif mode.is_target_verify():
        queries = [forward_batch.input_ids.shape[0] // len(lengths)] * len(lengths)
    else:
        queries = list(map(int, forward_batch.extend_seq_lens_cpu))
    for name, sizes in ((_QUERIES, queries), (_KEYS, lengths)):
        bounds = getattr(metadata, name, None)
        if bounds is None or len(bounds) != len(sizes) + 1:
            continue
        expected = [0, *accumulate(sizes)]
        # A bound is where the request before it ends.
        wrong = [
            WrongEntry(name, max(at - 1, 0), 0, value, wanted)
            for at, (value, wanted) in enumerate(zip(bounds.tolist(), expected, strict=True))
            if value != wanted
        ]
        if wrong:
            end, known = expected[-1] + 1, set(expected)
            kinds = or_swapped(wrong, [defect_of(w.value, w.expected, end, foreign=known) for w in wrong])
            had = {"as_before": None, "queries": ",".join(map(str, queries))}
            structure = Structure.KERNEL_LENGTHS
            report_wrong(scheduler, wrong, LENGTH, METADATA, structure, kinds, forward_batch, rows, had=had)
            return
