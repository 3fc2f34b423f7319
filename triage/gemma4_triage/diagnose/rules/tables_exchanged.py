"""The page tables of full and of sliding layers have changed places: each has the page ids of the other."""

import numpy as np

from gemma4_dumps.reader import Dump
from gemma4_dumps.structures import Defect, Structure
from gemma4_triage.diagnose import commands
from gemma4_triage.diagnose.evidence import cell, said, tensor_or_none
from gemma4_triage.diagnose.incident import PAGE_TABLE, Incident
from gemma4_triage.diagnose.rule import LEAVES_BUFFERS, Rule
from gemma4_triage.finding import Confidence, Finding

ID = "tables-exchanged"
_SWA, _FULL, _ROWS, _LENGTHS = "swa_page_table", "page_table", "request_rows", "cache_seqlens"
_WRITES, _SWA_WRITES = "out_cache_loc", "swa_out_cache_loc"


def find(incident: Incident) -> Finding | None:
    """Return a finding where the sliding layers' table has every request's row, and the other one none of it."""
    for dump in incident.of(rule=PAGE_TABLE):
        if (place := _exchanged(dump)) is not None:
            return _finding(incident, dump, *place)
    return None


def _exchanged(dump: Dump) -> tuple[int, int] | None:
    """Return a place that proves it: there the full table has the page in which the sliding layers write."""
    swa, full, rows, lengths = (tensor_or_none(dump, name) for name in (_SWA, _FULL, _ROWS, _LENGTHS))
    page = dump.manifest.page_size
    if swa is None or full is None or rows is None or lengths is None or not page:
        return None
    if not swa.shape == full.shape == rows.shape or lengths.shape != rows.shape[:1] or not rows.size:
        return None
    swa, live = swa.astype(np.int64), np.arange(rows.shape[1]) * page < lengths[:, None]
    for bad in dump.manifest.offences:
        if bad.table == _SWA and 0 <= bad.row < swa.shape[0] and 0 <= bad.column < swa.shape[1]:
            # Containment has replaced it in the saved table.
            swa[bad.row, bad.column] = bad.value
    other = live & (full != rows)
    # A few pages have equal ids in both pools.
    if not (swa == rows)[live].all() or 2 * other.sum() <= live.sum() or other.sum() < 2:
        return None
    peers = _peers(dump, page)
    known = [place for place in np.argwhere(live) if int(rows[tuple(place)]) in peers]
    if not known or any(int(full[tuple(place)]) != peers[int(rows[tuple(place)])] for place in known):
        return None
    return next(((int(row), int(column)) for row, column in known if other[row, column]), None)


def _peers(dump: Dump, page: int) -> dict[int, int]:
    """Return the sliding layers' page of each full page that this forward writes to."""
    writes, swa_writes = tensor_or_none(dump, _WRITES), tensor_or_none(dump, _SWA_WRITES)
    if writes is None or swa_writes is None or writes.shape != swa_writes.shape:
        return {}
    pairs = zip((writes // page).ravel().tolist(), (swa_writes // page).ravel().tolist(), strict=True)
    return {full: swa for full, swa in pairs if full > 0 and swa > 0}


def _finding(incident: Incident, dump: Dump, row: int, column: int) -> Finding:
    return Finding(
        rule=ID,
        structure=Structure.SWA_TABLE,
        defect=Defect.SWAPPED,
        cause=(
            "The two page tables have changed places: that of the sliding layers has the full-pool page ids of every "
            "request, and that of the full layers the pages in which the sliding layers write."
        ),
        confidence=Confidence.CERTAIN,
        evidence=(
            cell(dump, _SWA, (row, column), "what the sliding layers' table has"),
            cell(dump, _ROWS, (row, column), "the request's full page there, as in all its rows"),
            cell(
                dump, _FULL, (row, column), "what the full layers' table has: where sliding layers write these tokens"
            ),
            said(dump, "offences.0.request_slot", "a request that meets it"),
        ),
        advice=("Look at what fills both tables at once, and at the order in which it takes them.",),
        next_commands=(commands.show(dump), commands.serve(incident, "--debug trap")),
    )


RULE = Rule(
    ID,
    find,
    explains=("index-outside-buffer", "page-past-pool-end", "row-not-translated", "target-not-translated"),
    leads_to=LEAVES_BUFFERS,
)
