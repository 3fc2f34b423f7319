"""The corpus: explicit tuples of every fault that probes find, of clean loads, and of faults that only logits show."""

from __future__ import annotations

from gemma4_repro.corpus import (
    alloc_on_one_pool,
    clean_aborts,
    clean_chunked_prefill,
    clean_mixed_lengths,
    clean_prefix_hits,
    clean_retraction,
    clean_swa_pressure,
    deferred_free_after_replacement,
    double_bookkeeping,
    draft_pool_too_small,
    eager_out_cache_loc,
    finish_inside_forward,
    free_of_page_zero,
    full_draft_through_swa_map,
    hybrid_pool_unswapped,
    negative_page,
    one_untranslated_row,
    page_over_count,
    page_past_the_end,
    row_too_short,
    stale_mapping,
    swa_alloc_oob,
    swa_state_stale,
    unmergeable_spec_info,
    window_one_too_wide,
    yoco_stale_cache_loc,
)
from gemma4_repro.detection.case import Case, CleanCase, FaultCase, LogitFault
from gemma4_repro.errors import UnknownName

FAULTS: tuple[FaultCase, ...] = (
    swa_state_stale.CASE,
    hybrid_pool_unswapped.CASE,
    full_draft_through_swa_map.CASE,
    page_past_the_end.CASE,
    one_untranslated_row.CASE,
    negative_page.CASE,
    stale_mapping.CASE,
    page_over_count.CASE,
    deferred_free_after_replacement.CASE,
    draft_pool_too_small.CASE,
    eager_out_cache_loc.CASE,
    unmergeable_spec_info.CASE,
    row_too_short.CASE,
    double_bookkeeping.CASE,
    finish_inside_forward.CASE,
    window_one_too_wide.CASE,
    free_of_page_zero.CASE,
    alloc_on_one_pool.CASE,
    swa_alloc_oob.CASE,
)

CLEAN: tuple[CleanCase, ...] = (
    clean_mixed_lengths.CASE,
    clean_retraction.CASE,
    clean_aborts.CASE,
    clean_prefix_hits.CASE,
    clean_chunked_prefill.CASE,
    clean_swa_pressure.CASE,
)

LOGIT_FAULTS: tuple[LogitFault, ...] = (yoco_stale_cache_loc.CASE,)

CASES: tuple[Case, ...] = (*FAULTS, *CLEAN)


def choose_cases(wanted: tuple[str, ...]) -> tuple[Case, ...]:
    """The named cases in the catalog's order, each once; all of them if none is named. Raises UnknownName."""
    known = [case.id for case in CASES]
    gated = {case.id: case for case in LOGIT_FAULTS}
    for name in wanted:
        if name in gated:
            raise UnknownName(f"no probe sees {name!r}, so it is no run of the corpus", f"run: {gated[name].command}")
        if name not in known:
            raise UnknownName(f"the corpus has no case {name!r}", f"its cases: {', '.join(known)}")
    return tuple(case for case in CASES if not wanted or case.id in wanted)
