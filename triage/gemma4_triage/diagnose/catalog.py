"""Every rule, explicitly. Order: among findings of equal certainty and evidence the earlier rule comes first."""

from __future__ import annotations

from gemma4_triage.diagnose.rule import Rule
from gemma4_triage.diagnose.rules import (
    allocator_past_pool_end,
    crash_without_dump,
    draft_pool_too_small,
    draft_reads_translated_ids,
    draft_swa_state_stale,
    evicted_page_counted,
    failed_allocation_keeps_pages,
    finished_requests_not_released,
    foreign_ids,
    freed_while_held,
    guards_incomplete,
    index_outside_buffer,
    injected_fault,
    ledger_without_dump,
    mapping_outlives_page,
    null_page_in_live_column,
    page_freed_twice,
    page_given_twice,
    page_past_pool_end,
    pages_leaked,
    pages_lost_between_calls,
    parts_disagree,
    pool_swap_missed_leaf,
    row_not_translated,
    swa_page_replaced_before_free,
    swa_page_shared,
    swa_pool_too_small,
    table_too_narrow,
    target_not_translated,
    unassigned_page,
    unknown_verdict,
    unset_slot_freed,
    verify_input_left_on_batch,
    window_one_too_wide,
    write_locations_left_over,
    write_past_buffer,
)

RULES: tuple[Rule, ...] = (
    # What an index leads to.
    draft_swa_state_stale.RULE,
    pool_swap_missed_leaf.RULE,
    draft_reads_translated_ids.RULE,
    target_not_translated.RULE,
    row_not_translated.RULE,
    draft_pool_too_small.RULE,
    page_past_pool_end.RULE,
    unassigned_page.RULE,
    null_page_in_live_column.RULE,
    table_too_narrow.RULE,
    # What an allocator does.
    allocator_past_pool_end.RULE,
    mapping_outlives_page.RULE,
    failed_allocation_keeps_pages.RULE,
    pages_lost_between_calls.RULE,
    unset_slot_freed.RULE,
    page_freed_twice.RULE,
    page_given_twice.RULE,
    swa_page_shared.RULE,
    freed_while_held.RULE,
    # Who holds what.
    finished_requests_not_released.RULE,
    evicted_page_counted.RULE,
    swa_page_replaced_before_free.RULE,
    # What a batch carries.
    write_locations_left_over.RULE,
    verify_input_left_on_batch.RULE,
    # How the server was put together.
    parts_disagree.RULE,
    swa_pool_too_small.RULE,
    window_one_too_wide.RULE,
    # What is said about the run itself.
    ledger_without_dump.RULE,
    guards_incomplete.RULE,
    injected_fault.RULE,
    crash_without_dump.RULE,
    # What is left.
    foreign_ids.RULE,
    write_past_buffer.RULE,
    index_outside_buffer.RULE,
    pages_leaked.RULE,
    unknown_verdict.RULE,
)
