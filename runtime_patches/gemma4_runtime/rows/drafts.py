"""What `request-rows` asks of a frozen draft: it goes by its own lengths and tables, and by none of an earlier one."""

from __future__ import annotations

from typing import Any

from gemma4_dumps.structures import Defect, Structure
from gemma4_runtime.checks.request_rows import check_values
from gemma4_runtime.defects import defect_of
from gemma4_runtime.rows.report import DRAFT_POSITIONS, LENGTH, or_swapped, report_wrong
from gemma4_runtime.rows.seen import Seen


def check_draft_lengths(seen: Seen, forward_batch: Any, site: str) -> None:
    """Hold the lengths by which a draft's metadata was made against those that it had as its positions were set."""
    rows, lengths = forward_batch.req_pool_indices.tolist(), forward_batch.seq_lens.tolist()
    if seen.draft is not forward_batch or len(rows) != len(lengths):
        return
    expected = [seen.draft_lengths.get(row) for row in rows]
    wrong = check_values(lengths, expected)
    if not wrong:
        return
    before = [seen.drafted.get(row) for row in rows]
    width = seen.scheduler.req_to_token_pool.req_to_token.shape[1]
    known = {one for one in expected if one is not None}
    kinds: list[Defect | None] = [defect_of(one.value, one.expected, width + 1, foreign=known) for one in wrong]
    if len(wrong) > 1 and all(one.value == before[one.row] for one in wrong):
        kinds = [Defect.STALE for _ in wrong]
    kinds = or_swapped(wrong, kinds)
    report_wrong(
        seen.scheduler, wrong, LENGTH, site, Structure.KERNEL_LENGTHS, kinds, forward_batch, rows, role="draft"
    )


def check_draft_plan(seen: Seen, backend: Any, forward_batch: Any) -> None:
    """Find a draft that goes by what was made of an earlier one: its own tables and lengths were not made."""
    if seen.planned is None or seen.planned[0] is forward_batch:
        return
    _, made, planned, step = seen.planned
    lengths, slots = forward_batch.seq_lens.tolist(), forward_batch.req_pool_indices.tolist()
    if getattr(backend, "forward_metadata", None) is not made or not len(planned) == len(lengths) == len(slots):
        return
    wrong = check_values(planned, lengths)
    if wrong:
        had = {"as_before": None, "made_in_step": step}
        kinds, structure = [Defect.STALE for _ in wrong], Structure.KERNEL_LENGTHS
        report_wrong(
            *(seen.scheduler, wrong, LENGTH, DRAFT_POSITIONS, structure, kinds, forward_batch, slots),
            had=had,
            role="draft",
        )
