"""The corpus: explicit tuples of every fault and every clean load."""

from __future__ import annotations

from gemma4_repro.corpus import (
    clean_mixed_lengths,
    free_of_page_zero,
    negative_page,
    page_past_the_end,
    stale_mapping,
    swa_alloc_oob,
    swa_state_stale,
)
from gemma4_repro.detection.case import Case, CleanCase, FaultCase
from gemma4_repro.errors import UnknownName

FAULTS: tuple[FaultCase, ...] = (
    swa_state_stale.CASE,
    page_past_the_end.CASE,
    negative_page.CASE,
    stale_mapping.CASE,
    free_of_page_zero.CASE,
    swa_alloc_oob.CASE,
)

CLEAN: tuple[CleanCase, ...] = (clean_mixed_lengths.CASE,)

CASES: tuple[Case, ...] = (*FAULTS, *CLEAN)


def choose_cases(wanted: tuple[str, ...]) -> tuple[Case, ...]:
    """The named cases in the catalog's order, each once; all of them if none is named. Raises UnknownName."""
    known = [case.id for case in CASES]
    for name in wanted:
        if name not in known:
            raise UnknownName(f"the corpus has no case {name!r}", f"its cases: {', '.join(known)}")
    return tuple(case for case in CASES if not wanted or case.id in wanted)
